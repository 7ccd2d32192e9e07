"""Models on meshes of cores as a labelled dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.wafer import project

if TYPE_CHECKING:
    import xarray as xr

    from perfmodel.hwprofiles.mesh import MeshHardware
    from perfmodel.model.spec import ModelSpec
    from perfmodel.wafer.mappings import WaferGrid


def project_wafer(
    model: ModelSpec | str,
    hardware: MeshHardware | str | Sequence[MeshHardware | str],
    mappings: WaferGrid | None = None,
    **asked: Any,
) -> xr.Dataset:
    """Project a model on meshes of cores: every mapping, on every mesh, in every phase.

    Parameters
    ----------
    model, hardware, mappings, asked
        As of `perfmodel.wafer.project.project_wafer`, which returns the same as a table.

    Returns
    -------
    xarray.Dataset
        Dimensions ``mapping``, ``hardware`` and ``phase``, with ``parts=True`` also ``part``;
        variables of `perfmodel.wafer.variables.VARIABLES`, each with ``units``.

    Raises
    ------
    StrategyError, HardwareError, ModelError
        As there.

    Examples
    --------
    >>> found = project_wafer("llama-3-8b", "wse-2", grid=[420, 540], context=4096)
    >>> dict(found.sizes)
    {'mapping': 2, 'hardware': 1, 'phase': 1}
    """
    from perfmodel.store.datasets import wrapped

    return wrapped(project.project_wafer(model, hardware, mappings, **asked))
