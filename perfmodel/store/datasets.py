"""Results as `xarray` datasets; questions to them as methods: ``results.perfmodel.best()``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from perfmodel.base.errors import DataError
from perfmodel.base.table import Table
from perfmodel.kernels.variables import RATE
from perfmodel.store import cost, results
from perfmodel.store.difference import difference
from perfmodel.store.results import scaling
from perfmodel.store.subject import TRAINING, subject_of

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.store.results import Ranked


@xr.register_dataset_accessor("perfmodel")
class Results:
    """What one asks a dataset that `perfmodel.sweep` or `perfmodel.open_results` returned."""

    def __init__(self, dataset: xr.Dataset) -> None:
        self._dataset = dataset

    def best(
        self,
        top: int = 10,
        *,
        by: str = RATE,
        where: str | None = None,
        fitting: bool = True,
    ) -> Ranked:
        """Return the best strategies; see `perfmodel.best`."""
        return results.best(self._dataset, top, by=by, where=where, fitting=fitting)

    def pareto(
        self, objectives: Sequence[str], *, where: str | None = None, fitting: bool = True
    ) -> Ranked:
        """Return the strategies that no other one beats; see `perfmodel.pareto`."""
        return results.pareto(self._dataset, objectives, where=where, fitting=fitting)

    def add_cost(self, **given: Any) -> xr.Dataset:
        """Return the results with what every strategy costs; see `perfmodel.add_cost`."""
        return cost.add_cost(self._dataset, **given)

    def breakdown(
        self, top: int = 10, *, where: str | None = None, fitting: bool = True
    ) -> pd.DataFrame:
        """Return where the time of the best strategies goes.

        Parameters
        ----------
        top : int
            How many strategies, the fastest first.
        where : str, optional
            Filter, as of `best`.
        fitting : bool
            Leave out what does not fit in memory.

        Returns
        -------
        pandas.DataFrame
            A row per strategy, with its place in the dataset as index; ``step_time`` [s], and
            the share of every component in it. The shares add up to 1. Of served models the
            same of a mean pass, ``pass_time``; of mappings of meshes that of ``latency``.
        """
        frame = self.best(top, where=where, fitting=fitting).to_dataframe()
        frame = frame.set_index(list(subject_of(self._dataset).dims))
        subject = subject_of(self._dataset)
        whole, parts = subject.whole, list(subject.parts)
        if subject is not TRAINING:
            frame[whole] = frame[parts].sum(axis=1)
        shares = frame[parts].div(frame[whole], axis=0)
        shares.insert(0, whole, frame[whole])
        return shares

    def scaling(self, *, where: str | None = None, fitting: bool = True) -> Ranked:
        """Return the best strategy on every number of devices; see `perfmodel.scaling`."""
        return scaling(self._dataset, where=where, fitting=fitting)

    def compare(
        self, other: xr.Dataset, *, where: str | None = None, fitting: bool = True
    ) -> pd.DataFrame:
        """Return what changes from the best strategy here to the best one of another sweep.

        Parameters
        ----------
        other : xarray.Dataset
            As this one.
        where, fitting
            As of `best`, for both.

        Returns
        -------
        pandas.DataFrame
            A row per quantity: ``a`` of this dataset and ``b`` of the other [SI units], and their
            ``change`` [1]. Settings that differ stand first, without a change.

        Raises
        ------
        DataError
            Nothing fits, or passes the filter, in one of them.
        """
        import pandas as pd

        both = [results.best(it, 1, where=where, fitting=fitting) for it in (self._dataset, other)]
        if not all(both):
            raise DataError("no strategy fits in memory and passes the filter in both sweeps")
        found = difference(both[0][0], both[1][0])
        lines: dict[str, tuple[Any, ...]] = {
            name: (a, b, None) for name, (a, b) in found.settings.items()
        }
        lines |= {it.name: (it.a, it.b, it.relative) for it in found.changes.values()}
        return pd.DataFrame.from_dict(lines, orient="index", columns=["a", "b", "change"])


def wrapped(table: Table) -> xr.Dataset:
    """Return a table as a dataset that has the accessor."""
    return table.to_xarray()


def open_results(path: str | Path) -> xr.Dataset:
    """Open a stored sweep as `sweep` returned it; numbers are read when they are used.

    Raises
    ------
    DataError
        The file is missing, is neither netCDF nor zarr, or is not a sweep of this schema.
    """
    return wrapped(results.open_table(path))
