"""What may be chosen of a model on a mesh of cores, and grids of such choices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.axes import axis_product, axis_values, encode
from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.kernels.wafer.columns import MeshMappings
from perfmodel.wafer.result_subject import AXES, FIELD_BY_NAME, MAPPING_FIELDS

GRID = re.compile(r"(\d{1,9})(?:\s*[xX×]\s*(\d{1,9}))?")
_KERNEL_NAMES = {"grid_rows": "rows", "grid_columns": "columns"}


@dataclass(frozen=True, repr=False)
class WaferGrid:
    """Mappings of a model on a mesh, a column per field.

    Attributes
    ----------
    columns : mapping of str to ndarray, shape (mappings,)
        By the names of `MAPPING_FIELDS`; choices as their place.
    """

    columns: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.columns["grid_rows"])

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def __repr__(self) -> str:
        return f"<WaferGrid of {len(self):,} mappings>"

    def kernel_columns(self) -> MeshMappings:
        """Return the columns as the closing kernel takes them."""
        columns: dict[str, Any] = {
            _KERNEL_NAMES.get(spec.name, spec.name): np.ascontiguousarray(
                self.columns[spec.name], np.int64 if spec.choices else np.float64
            )
            for spec in MAPPING_FIELDS
        }
        return MeshMappings(**columns)


def wafer_grid(**axes: Any) -> WaferGrid:
    """Multiply out mappings of a model on a mesh of cores.

    Parameters
    ----------
    axes : value or iterable of values
        ``grid`` (``420``, ``"420x360"`` or ``(420, 360)``), ``regions``, ``context`` [tokens],
        ``batch`` [sequences], ``collective``, ``product``, ``cache_layout``; see
        `MAPPING_FIELDS`. ``"all"`` names every choice. A field left out has its default.

    Returns
    -------
    WaferGrid

    Raises
    ------
    StrategyError
        No grid, an unknown field, or a value that the field cannot have.

    Examples
    --------
    >>> wafer_grid(grid=range(300, 721, 60), context=[2048, 4096])
    <WaferGrid of 16 mappings>
    """
    for name in axes:
        if name not in AXES:
            raise StrategyError(f"unknown field '{name}' of a mapping{did_you_mean(name, AXES)}")
    if "grid" not in axes:
        raise StrategyError("a mapping needs 'grid': cores of a region, such as 420 or '420x360'")
    grids = _grids(axes["grid"])
    columns = {"grid": np.arange(len(grids))}
    for spec in MAPPING_FIELDS[2:]:
        columns[spec.name] = axis_values(
            spec.name, axes.get(spec.name, spec.default), FIELD_BY_NAME
        )
    meshed = axis_product(columns, "mappings", 8.0 * 64)
    sides = np.array(grids, np.int64)[meshed.pop("grid")]
    return WaferGrid({"grid_rows": sides[:, 0], "grid_columns": sides[:, 1], **meshed})


def parse_grid(value: Any) -> tuple[int, int]:
    """Return rows and columns of cores, of a number, a pair, or a text such as ``420x360``.

    Raises
    ------
    StrategyError
        Anything else.
    """
    sides: tuple[Any, ...]
    if isinstance(value, str):
        found = GRID.fullmatch(value.strip())
        if found is None:
            raise StrategyError(f"grid: '{value}' should be a number of cores, or rows x columns")
        sides = (int(found[1]), int(found[2] or found[1]))
    elif isinstance(value, tuple | list) and len(value) == 2:
        sides = tuple(value)
    else:
        sides = (value, value)
    rows, columns = (int(encode("grid_rows", side, FIELD_BY_NAME)) for side in sides)
    return rows, columns


def _grids(values: Any) -> list[tuple[int, int]]:
    if (isinstance(values, tuple) and len(values) == 2) or not isinstance(values, Iterable):
        values = [values]
    elif isinstance(values, str):
        values = values.split(",")
    found = list(dict.fromkeys(parse_grid(value) for value in values))
    if not found:
        raise StrategyError("grid: the list of values is empty")
    return found
