"""Compare the wafer workload generator's twin with what the generator wrote.

``compare(folder)`` reads what it finds of ``ref_configs.csv`` with ``ref_nodes.csv.gz``,
``ref_totals.csv`` and ``ref_routings_decode10.npz`` (configurations that ran, and those that the
generator fails at), and of ``out_deepseekv3`` and ``out_small`` (files that it wrote, for
routings that are drawn anew here) with their core traces and the totals of those,
``core_*.csv``. Models, systems and counts lie in ``configs`` and beside it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from parity_kinds.rows import error_statistics, read_rows
from parity_kinds.wse_cores import core_groups

from perfmodel.base.errors import DataError, FormatError, PerfModelError
from perfmodel.base.files import read_json, read_unpacked
from perfmodel.base.routing import read_counts
from perfmodel.model.config import read_config
from perfmodel.model.spec import ModelSpec
from perfmodel.wafer.generator_files import format_node_graph, format_node_table, read_systems
from perfmodel.wafer.routing import RoutedTokens
from perfmodel.wafer.setting import LM_HEAD
from perfmodel.wafer.system import WaferSystem
from perfmodel.wafer.twin.cores import layer_of
from perfmodel.wafer.twin.routing import GeneratorRouting
from perfmodel.wafer.twin.run import footprints, iteration_rows
from perfmodel.wafer.twin.setting import Iteration, element_bytes

CONFIGURATIONS, NODES = "ref_configs.csv", "ref_nodes.csv.gz"
TOTALS, ROUTINGS = "ref_totals.csv", "ref_routings_decode10.npz"
TREES = ("out_deepseekv3", "out_small")
MODELS = {"dsv3": "configs/deepseekv3.json", "llama3": "configs/llama3.json"}
WORKLOADS = {"empirical_mmlu": "empirical"}
FIELDS = {
    "num_nodes": "nodes",
    "dp_attn": "data_parallel",
    "tp_attn": "tensor_parallel",
    "sp": "sequence_parallel",
    "pp": "pipeline_parallel",
    "ep": "expert_parallel",
    "tp_ffn": "ffn_tensor_parallel",
    "dp_ffn": "ffn_data_parallel",
    "n_redundant_shared_exp": "shared_copies",
}
KEY = ("config", "node", "layer", "component")
CELLS = ("MACs", "memory_footprint_B", "hbm_reads_B", "network_B")
TOTAL_CELLS = ("MACs", "hbm_reads", "network")
SMALL = WaferSystem(
    nodes=4,
    node_grid=(2, 2),
    core_grid=(4, 4),
    tensor_parallel=2,
    sequence_parallel=2,
    expert_parallel=4,
)
"""The system of ``out_small``, which is not kept beside it: batch 8, prompts of 1,024 tokens."""

FREE = ("View", "Transpose", "Split", "Slice", "Concat", "Add", "Sum", "Barrier")
"""Operations that cost nothing there, and that the reference leaves out."""
ATTENTION = {
    "wkva": "wkv_a",
    "wqa": "wq_a",
    "wqb": "wq_b",
    "wkvb": "wkv_b",
    "wkvb1": "wkv_b1",
    "wkvb2": "wkv_b2",
    "wo": "wo",
    "qproj": "q_proj",
    "kproj": "k_proj",
    "vproj": "v_proj",
    "oproj": "o_proj",
    "absorbattn": "mla_absorb",
    "naiveattn": "mla_naive",
    "selfattn": "gqa",
    "ar_sp": "allreduce_sp",
    "ar_tp": "allreduce_tp",
}
EXPERTS = {
    "moe_gate": "moe.gate",
    "moe_a2a_disp": "moe.dispatch(alltoall)",
    "moe_multicast_exp": "moe.dispatch(multicast)",
    "moe_ag_disp": "moe.dispatch(allgather)",
    "moe_gather": "moe.gather",
    "moe_combine_a2a": "moe.combine(alltoall)",
    "moe_unicast": "moe.combine(unicast)",
    "moe_ag_comb": "moe.combine(allgather)",
    "moe_multicast_dp": "moe.multicast_dp",
}
"""Components of the reference by the names of rows."""

Cell = tuple[int, ...]


def compare(path: Path) -> dict[str, Any]:
    """Compare all that a folder holds.

    Parameters
    ----------
    path : path

    Returns
    -------
    dict
        ``kind``, ``count`` (cells and files compared), ``exact``, ``worst_relative_error`` and
        ``median_relative_error`` (of a cell; of a file the share of its lines that differ),
        ``uncovered`` {reason: count}, ``groups`` (the same by what is compared) and ``limits``
        {configuration that the generator fails at: what is said here}.

    Raises
    ------
    DataError
        The folder holds nothing of it.
    PerfModelError
        A file is missing or malformed.
    """
    path = Path(path)
    groups: dict[str, list[float]] = {}
    uncovered: Counter[str] = Counter()
    limits: dict[str, str] = {}
    if (path / CONFIGURATIONS).exists():
        groups |= _configurations(path, uncovered, limits)
    for name in TREES:
        if (path / name).is_dir():
            groups[name] = list(_tree_errors(path, name))
            iterations, routing = _tree_setting(path, name)
            groups |= core_groups(path, name, iterations[0], routing(0))
    if not groups:
        raise DataError(f"'{path}' has none of {CONFIGURATIONS}, {', '.join(TREES)}")
    return {
        "kind": "wse",
        **error_statistics([error for errors in groups.values() for error in errors]),
        "uncovered": dict(uncovered),
        "groups": {name: error_statistics(errors) for name, errors in groups.items()},
        "limits": limits,
    }


@cache
def _model(file: Path) -> ModelSpec:
    return read_config(file)


def _iteration(path: Path, where: str, row: Mapping[str, str]) -> Iteration:
    """Return the iteration of a configuration."""
    try:
        numbers = {key: int(row[key]) for key in (*FIELDS, "bsz", "prefill_len", "decode_iter")}
        speculated = int(row["spec_dec"])
    except ValueError as error:
        raise FormatError(f"{where}: {error}") from None
    if row["model"] not in MODELS:
        raise FormatError(f"{where}: unknown model '{row['model']}'; known: {', '.join(MODELS)}")
    model = _model(path / MODELS[row["model"]])
    system = WaferSystem(
        **{field: numbers[key] for key, field in FIELDS.items()},  # type: ignore[arg-type]
        node_grid=(1, numbers["num_nodes"]),
        expert_exchange=row["moe_comm"],
    )
    return Iteration(
        model,
        system,
        row["phase"],
        numbers["bsz"],
        numbers["prefill_len"],
        speculated,
        *element_bytes(row["dtype"]),
        step=numbers["decode_iter"],
        layers=() if row["layers"] == "all" else tuple(row["layers"].split(",")),
    )


def _configurations(
    path: Path, uncovered: Counter[str], limits: dict[str, str]
) -> dict[str, list[float]]:
    """Return errors of the configurations' cells, totals and footprints."""
    wanted = ("id", "model", "phase", "bsz", "prefill_len", "decode_iter", "spec_dec", "moe_comm")
    columns = (*wanted, *FIELDS, "expert_workload_model", "dtype", "layers", "status")
    routings = np.load(path / ROUTINGS) if (path / ROUTINGS).exists() else {}
    ours: dict[tuple[str, ...], Cell] = {}
    held: list[float] = []
    compared = set()
    for where, row in read_rows(path / CONFIGURATIONS, columns):
        name = row["id"]
        try:
            iteration = _iteration(path, where, row)
            routed = None
            if name in routings:
                experts = routings[name].transpose(1, 2, 0)[None].astype(np.int64)
                routed = RoutedTokens(np.ascontiguousarray(experts), iteration.moe.experts)
            elif iteration.routes:
                workload = row["expert_workload_model"]
                drawn = GeneratorRouting({0: iteration}, WORKLOADS.get(workload, workload))
                routed = drawn(0)
            cells = {(name, *key): cell for key, cell in _cells(iteration, routed).items()}
        except PerfModelError as error:
            if row["status"] == "ok":
                uncovered[f"{name}: {error}"] += 1
            limits[name] = str(error)
            continue
        if row["status"] != "ok":
            limits[name] = "runs here"
            continue
        ours |= cells
        compared.add(name)
        held += _footprint_errors(iteration, row)
    found = {"footprints of configurations": held}
    if (path / NODES).exists():
        found |= _node_errors(path / NODES, ours, compared)
    if (path / TOTALS).exists():
        found["totals over nodes"] = list(_total_errors(path / TOTALS, ours, compared))
    return found


def _cells(iteration: Iteration, routed: RoutedTokens | None) -> dict[tuple[str, ...], Cell]:
    """Return rows and the four quantities by node, layer and component, of rows that cost."""
    found: dict[tuple[str, ...], list[int]] = {}
    for rows in iteration_rows(iteration, routed):
        for row in rows.table:
            if row.operation in FREE:
                continue
            layer = LM_HEAD if row.name.startswith(LM_HEAD) else layer_of(row.name)
            component = _component(layer, row.name.removeprefix(f"{layer}_"), row.operation)
            cell = found.setdefault((str(rows.node), layer, component), [0] * 5)
            for at, value in enumerate((1, row.macs, row.footprint, row.reads, row.sent)):
                cell[at] += value
    return {key: tuple(cell) for key, cell in found.items()}


def _component(layer: str, name: str, operation: str) -> str:
    """Return the component of the reference that a row belongs to."""
    if name.startswith("attn_"):
        return f"attn.{ATTENTION[re.sub('^attn_(absorb_|naive_)?', '', name)]}"
    if name.startswith("moe_exp_"):
        if operation == "AllReduce":
            return "moe.experts.allreduce"
        return "moe.shared_expert" if name.startswith("moe_exp_shared_") else "moe.routed_experts"
    for start, component in EXPERTS.items():
        if name.startswith(start):
            return component
    part = "lm_head" if layer == LM_HEAD else "dense_ffn"
    if operation == "AllReduce":
        return f"{part}.allreduce"
    return "lm_head.head" if layer == LM_HEAD else part


def _node_errors(
    path: Path, ours: Mapping[tuple[str, ...], Cell], compared: set[str]
) -> dict[str, list[float]]:
    """Return errors of every cell, and of numbers of rows; what either lacks counts as 1."""
    cells: list[float] = []
    rows: list[float] = []
    seen = set()
    for where, row in read_rows(path, (*KEY, "n_ops_rows", *CELLS)):
        if row["config"] not in compared:
            continue
        key = tuple(row[column] for column in KEY)
        theirs = [_whole(row, column, where) for column in ("n_ops_rows", *CELLS)]
        mine = ours.get(key, (-1,) * 5)
        rows.append(_relative(mine[0], theirs[0]))
        cells += [_relative(a, b) for a, b in zip(mine[1:], theirs[1:], strict=True)]
        seen.add(key)
    cells += [1.0] * sum(len(CELLS) for key in ours if key not in seen)
    return {"cells of nodes": cells, "numbers of rows": rows}


def _total_errors(
    path: Path, ours: Mapping[tuple[str, ...], Cell], compared: set[str]
) -> Iterable[float]:
    """Yield errors of what node 0 has, of the least, the most and the sum over nodes."""
    parts: dict[tuple[str, ...], list[Cell]] = {}
    first: dict[tuple[str, ...], Cell] = {}
    for (name, node, *rest), cell in ours.items():
        parts.setdefault((name, *rest), []).append(cell)
        if node == "0":
            first[name, *rest] = cell
    wanted = [f"{cell}_{what}" for cell in TOTAL_CELLS for what in ("node0", "min", "max", "sum")]
    for where, row in read_rows(
        path, ("config", "layer", "component", "n_nodes_present", "n_nodes", *wanted)
    ):
        key = (row["config"], row["layer"], row["component"])
        if key[0] not in compared:
            continue
        cells = parts.get(key, [])
        absent = _whole(row, "n_nodes", where) - len(cells)
        yield _relative(len(cells), _whole(row, "n_nodes_present", where))
        for cell, at in zip(TOTAL_CELLS, (1, 3, 4), strict=True):
            values = [each[at] for each in cells] + [0] * absent
            mine = {
                "node0": first[key][at] if key in first else 0,
                "min": min(values),
                "max": max(values),
                "sum": sum(values),
            }
            for what, value in mine.items():
                yield _relative(value, _whole(row, f"{cell}_{what}", where))


def _footprint_errors(iteration: Iteration, row: Mapping[str, str]) -> list[float]:
    """Return errors of node 0's footprint and of the largest."""
    kept = iteration.context + 1 if iteration.context else iteration.length
    held = footprints(iteration, kept)
    pairs = ((held[0], "footprint_node0_B"), (held.max(), "footprint_max_B"))
    return [_relative(int(mine), int(row[column])) for mine, column in pairs if row.get(column)]


def _tree_setting(path: Path, name: str) -> tuple[dict[int, Iteration], GeneratorRouting]:
    """Return the iterations that a tree was written for, and their routing."""
    model = _model(path / MODELS["dsv3"])
    small = name == "out_small"
    system = SMALL if small else read_systems(path / "configs/system.json")["decode"]
    batch, prompt = (8, 1024) if small else (1024, 2048)
    iterations = {
        step: Iteration(model, system, "decode", batch, prompt, step=step, layers=("decode10",))
        for step in (0, 9)
    }
    counts = np.array(read_counts(path / "bincounts.json"))
    return iterations, GeneratorRouting(iterations, "empirical", counts)


def _tree_errors(path: Path, name: str) -> Iterable[float]:
    """Yield for every file of a tree the share of its lines that differ."""
    iterations, routing = _tree_setting(path, name)
    files = {(kind, node, step): file for kind, node, step, file in _tree_files(path / name)}
    for step, iteration in iterations.items():
        nodes = sorted({node for _, node, at in files if at == step})
        parts = list(iteration_rows(iteration, routing(step), nodes))
        for (kind, node, at), file in files.items():
            if at != step:
                continue
            mine = [rows for rows in parts if rows.node == node]
            text = (
                format_node_table(row for rows in mine for row in rows.table)
                if kind == "nodes"
                else format_node_graph(row for rows in mine for row in rows.graph)
            )
            yield _differing(text, read_unpacked(file).decode())
    if (path / name / "footprint.json").exists():
        theirs = read_json(path / name / "footprint.json")
        mine = footprints(iterations[0], iterations[9].context + 1).tolist()
        yield _differing("\n".join(map(str, mine)), "\n".join(map(str, theirs)))


def _tree_files(folder: Path) -> Iterable[tuple[str, int, int, Path]]:
    """Yield the kind, node and step of every table and graph, and the file."""
    for file in sorted(folder.glob("*/*.csv*")):
        kind = file.parent.name.split("_")[0]
        words = f"{file.parent.name}_{file.name.split('.')[0]}".split("_")
        if kind in ("nodes", "graph") and "node" in words:
            step = int(words[-1].removeprefix("decode"))
            yield kind, int(words[words.index("node") + 1]), step, file


def _differing(mine: str, theirs: str) -> float:
    pairs = list(zip_longest(mine.split("\n"), theirs.split("\n")))
    return sum(a != b for a, b in pairs) / len(pairs)


def _whole(row: Mapping[str, str], column: str, where: str) -> int:
    try:
        return int(row[column])
    except ValueError:
        raise FormatError(f"{where}: {column} '{row[column]}' should be a whole number") from None


def _relative(ours: int, reference: int) -> float:
    """Return the relative error; absolute where the reference is 0."""
    return abs(ours - reference) / (reference or 1)


def table(document: dict[str, Any]) -> list[str]:
    """Return the lines of a table by group, and what fails in the generator."""
    groups = document["groups"]
    width = max(map(len, groups))
    lines = [f"{'group':{width}}  compared  exact      worst     median"]
    for name, group in groups.items():
        errors = "         -          -"
        if group["count"]:
            errors = f"{group['worst_relative_error']:10.4%} {group['median_relative_error']:10.4%}"
        lines.append(f"{name:{width}}  {group['count']:8d}  {group['exact']:5d} {errors}")
    if document["limits"]:
        lines += ["", "where the generator fails:"]
        lines += [f"  {name}: {said}" for name, said in document["limits"].items()]
    return [*lines, ""]
