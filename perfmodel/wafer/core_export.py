"""Instructions of cores into files: the generator's text, one netCDF file, totals."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError, StrategyError
from perfmodel.base.files import atomic_path, user_path
from perfmodel.base.units import format_size
from perfmodel.model.presets import load_model
from perfmodel.store.netcdf import read_netcdf
from perfmodel.wafer.core_columns import CoreColumns
from perfmodel.wafer.core_trace import FOLDER, CoreTexts, TracePiece, replaced_traces
from perfmodel.wafer.cores.expert_routes import Routes
from perfmodel.wafer.cores.instructions import (
    CORE,
    GEMM,
    OPCODE,
    OPCODES,
    bytes_times_links,
    core_totals,
)
from perfmodel.wafer.cores.products import CoreOperation
from perfmodel.wafer.cores.program import node_operations
from perfmodel.wafer.setting import CoreSetting
from perfmodel.wafer.system import WaferSystem

TEXT, COLUMNAR = "text", "columns"
COLUMNS_FILE = "cores.nc"
NODES_FILE = "nodes.nc"
FORMS = (TEXT, COLUMNAR)


class Written(NamedTuple):
    """What was written: totals of all instructions.

    Attributes
    ----------
    counts, moved : array of int, shape (7,)
        Instructions and bytes by opcode [B].
    macs, executed : int
        Multiply-adds that are asked for, and those of all products.
    busiest : int
        Sum over products and attentions of cores times the multiply-adds of the busiest one.
    links : int
        Bytes times links of the mesh [B].
    """

    counts: Integers
    moved: Integers
    macs: int
    executed: int
    busiest: int
    links: int

    @property
    def occupancy(self) -> float:
        """Useful multiply-adds over cores times those of the busiest, of all products."""
        return self.macs / self.busiest if self.busiest else 1.0


def setting_of_nodes(folder: str | os.PathLike[str]) -> CoreSetting | None:
    """Return what ``nodes.nc`` in a folder says that it is of; None where there is none.

    Raises
    ------
    DataError, ModelError
        The file is another, or its model is no preset.
    """
    path = user_path(folder) / NODES_FILE
    if not path.exists():
        return None
    stated = read_netcdf(path).attrs
    try:
        system = json.loads(str(stated["system"]))
        for key in ("node_grid", "core_grid"):
            system[key] = tuple(system[key])
        return CoreSetting(
            load_model(str(stated["model"])),
            WaferSystem(**system),
            str(stated["phase"]),
            *(int(stated[key]) for key in ("batch", "input_length", "speculative")),
            *(float(stated[key]) for key in ("weight_bytes", "activation_bytes", "cache_bytes")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"'{path}' says not of what it is ({error}); state --model") from None


def write_cores(
    folder: str | os.PathLike[str],
    setting: CoreSetting,
    routes: Routes,
    *,
    nodes: Sequence[int],
    steps: Sequence[int],
    layers: frozenset[str],
    forms: Sequence[str] = FORMS,
    attributes: dict[str, Any] | None = None,
) -> Written:
    """Write the instructions of cores, in the memory of one operation.

    Parameters
    ----------
    folder : str or path
        Text goes to ``traces/<phase>/node_<node>/<step>/core_<core>.csv`` in it, columns to
        ``cores.nc``. What was there of these is replaced when all is done.
    setting : CoreSetting
    routes : Routes
    nodes, steps : sequence of int
    layers : frozenset of str
        As `perfmodel.wafer.setting.check_layers` returns them.
    forms : sequence of {"text", "columns"}
    attributes : dict, optional
        Text and numbers for the netCDF file.

    Raises
    ------
    DataError
        The folder cannot be written.
    StrategyError
        A tile that a bank cannot hold.
    """
    if not str(folder):
        raise DataError("cannot write '': name a folder")
    target = user_path(folder)
    new = not target.exists()
    try:
        target.mkdir(exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write '{target}': {error.strerror or error}") from None
    try:
        with contextlib.ExitStack() as stack:
            text = columns = None
            if TEXT in forms:
                text = stack.enter_context(replaced_traces(target / FOLDER))
            if COLUMNAR in forms:
                path = stack.enter_context(atomic_path(target / COLUMNS_FILE))
                columns = CoreColumns(path, setting.system, attributes or {})
                stack.callback(columns.close)
            return _write_into(text, columns, setting, routes, nodes, steps, layers)
    except BaseException:
        if new:
            with contextlib.suppress(OSError):  # not empty: someone else's by now
                target.rmdir()
        raise


def _write_into(
    folder: Path | None,
    columns: CoreColumns | None,
    setting: CoreSetting,
    routes: Routes,
    nodes: Sequence[int],
    steps: Sequence[int],
    layers: frozenset[str],
) -> Written:
    counts, moved = np.zeros(len(OPCODES), np.int64), np.zeros(len(OPCODES), np.int64)
    sums = np.zeros(4, object)
    sums[:] = 0
    for step in steps:
        name = f"{setting.phase}{step}" if setting.phase == "decode" else setting.phase
        for node in nodes:
            text = None
            if folder is not None:
                place = folder / setting.phase / f"node_{node}" / name
                text = CoreTexts([place], setting.system.cores)
            for operation in node_operations(setting, node, step, routes, layers):
                made = operation.instructions
                check_tiles(operation, setting)
                if text is not None:
                    text.add(place, [_text_of(operation, node * setting.system.cores)])
                if columns is not None:
                    columns.add(node, step, operation.name, operation.macs, made)
                total = core_totals(made)
                counts += total.counts
                moved += total.moved
                sums += (
                    operation.macs,
                    total.macs,
                    total.busiest_macs * setting.system.cores,
                    bytes_times_links(made, setting.system),
                )
            if text is not None:
                text.flush()
    return Written(counts, moved, *map(int, sums))


def check_tiles(operation: CoreOperation, setting: CoreSetting) -> None:
    """Refuse tiles that a core's bank cannot hold: both operands and the result of a product.

    Raises
    ------
    StrategyError
    """
    lines, arguments = operation.instructions.lines, operation.instructions.arguments
    products = arguments[lines[:, OPCODE] == GEMM]
    if not setting.bank_size or not len(products):
        return
    m, k, n = products[:, 0], products[:, 1], products[:, 2]
    sizes = (m * k + m * n) * setting.activation_bytes + k * n * setting.weight_bytes
    at = int(np.argmax(sizes))
    if sizes[at] > setting.bank_size:
        raise StrategyError(
            f"key 'bank_size': the tile {m[at]} x {k[at]} x {n[at]} of {operation.name} takes "
            f"{format_size(float(sizes[at]))}, a bank holds {format_size(setting.bank_size)}; take "
            "more cores, a smaller batch or shorter prompts"
        )


def _text_of(operation: CoreOperation, first_core: int) -> TracePiece:
    """Return an operation as a piece of text, with the cores counted from the node's first."""
    lines = operation.instructions.lines.copy()
    lines[:, CORE] -= first_core
    here = operation.instructions._replace(lines=lines)
    return TracePiece(here, operation.name, np.empty((1, 0), np.int64))
