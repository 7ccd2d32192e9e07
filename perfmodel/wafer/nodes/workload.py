"""All operations of a model on the nodes of a wafer, and the table of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Sequence
from functools import partial

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import StrategyError
from perfmodel.base.memory import check_memory
from perfmodel.base.provenance import versions
from perfmodel.base.table import Column, Table, described
from perfmodel.base.version import __version__
from perfmodel.kernels.work import expect
from perfmodel.wafer.cores.program import LM_HEAD, check_layers
from perfmodel.wafer.cores.setting import CoreSetting
from perfmodel.wafer.nodes.blocks import Blocks, Shares
from perfmodel.wafer.nodes.experts import RoutingOf, expert_amounts, expert_layer
from perfmodel.wafer.nodes.rows import KINDS, QUANTITIES, SIZES, Operation, OperationRows
from perfmodel.wafer.system import bucket_starts

SCHEMA_VERSION = "1.0"
EMBEDDING = "embedding"

VARIABLES = {
    "macs": ("1", "multiply-adds"),
    "flops": ("FLOP", "operations: two of a multiply-add, one of an addition"),
    "footprint": ("B", "weights and cache that the node holds for it"),
    "reads": ("B", "weights, cache and activations that it reads"),
    "writes": ("B", "activations and cache that it writes"),
    "sent": ("B", "bytes that leave the node"),
    "received": ("B", "bytes that come to the node"),
    "rows": ("1", "rows of a product (M), queries of attention, tokens of an exchange"),
    "inner": ("1", "inner length of a product (K), multiply-adds of a pair in attention"),
    "outer": ("1", "columns of a product (N), keys of attention, elements of a collective"),
    "instances": ("1", "products side by side, heads of attention, experts with tokens"),
}


def node_operations(
    setting: CoreSetting,
    steps: tuple[int, ...],
    routing: RoutingOf | None,
    layers: Collection[str] | None = None,
) -> list[Operation]:
    """Return all operations in the order in which they run.

    Parameters
    ----------
    setting : CoreSetting
    steps : tuple of int
        Of decode, from 0; (0,) in prefill.
    routing : RoutingOf or None
        None for a model without experts.
    layers : collection of str, optional
        Those of `perfmodel.wafer.cores.program.layer_names`; all without it, and the embedding.

    Raises
    ------
    StrategyError
        A layer that the model does not have, or experts without a routing.
    """
    chosen = check_layers(setting, layers)
    model, system = setting.model, setting.system
    shares, rows = Shares(setting, steps), OperationRows(system.nodes)
    blocks = Blocks(shares, rows)
    starts = bucket_starts(model.num_layers, system.pipeline_parallel)
    expect(expert_rows=_draws(setting, chosen) * len(steps))
    last = -1
    if layers is None:
        last = _on_stage(rows, shares, 0, partial(blocks.embedding, EMBEDDING))
    else:
        last = rows.add("input", "tokens", "barrier")
    repeated: dict[object, tuple[int, int, int, int]] = {}  # attention: first, end, input, output
    for stage in range(system.pipeline_parallel):
        for layer in range(int(starts[stage]), int(starts[stage + 1])):
            name = f"{setting.phase}{layer}"
            if name not in chosen:
                continue
            spec = model.layers[layer]
            attention, mlp = spec.attentions[0], spec.mlps[0]
            key = (attention, stage)
            if key in repeated:
                first, end, given, output = repeated[key]
                last = rows.again(first, end, name, {given: last})[output]
            else:
                first, given = len(rows.operations), last
                last = _on_stage(
                    rows,
                    shares,
                    stage,
                    partial(blocks.attention, name, attention, given),
                )
                repeated[key] = (first, len(rows.operations), given, last)
            if mlp.experts:
                if routing is None:
                    raise StrategyError(f"key 'routing': {model.name} has experts")
                amounts = expert_amounts(setting, mlp, stage, layer, steps, routing)
                last = _on_stage(
                    rows,
                    shares,
                    stage,
                    partial(expert_layer, blocks, name, mlp, stage, last, amounts),
                )
            else:
                last = _on_stage(rows, shares, stage, partial(blocks.dense, name, mlp, last))
        if stage + 1 < system.pipeline_parallel:
            last = _handed_on(rows, shares, stage, last)
    if LM_HEAD in chosen:
        _on_stage(rows, shares, system.pipeline_parallel - 1, partial(blocks.head, LM_HEAD, last))
    return rows.operations


def _draws(setting: CoreSetting, chosen: Collection[str]) -> int:
    """Return about how many experts tokens are given in a step."""
    return sum(
        setting.batch * mlp.experts_per_token
        for at, layer in enumerate(setting.model.layers)
        for mlp in layer.mlps
        if mlp.experts and f"{setting.phase}{at}" in chosen
    )


def _on_stage(rows: OperationRows, shares: Shares, stage: int, add: Callable[[], int]) -> int:
    """Add operations that only the nodes of a stage do; return what `add` does."""
    first = len(rows.operations)
    result = add()
    if shares.setting.system.pipeline_parallel > 1:
        mask = shares.stage_mask(stage)
        for one in rows.operations[first:]:
            one.values = {
                name: value * mask if name in QUANTITIES or name == "rows" else value
                for name, value in one.values.items()
            }
    return result


def _handed_on(rows: OperationRows, shares: Shares, stage: int, source: int) -> int:
    """Add the transfer of activations to the next stage: every node to the one of its rank."""
    setting = shares.setting
    size = shares.tokens * setting.model.hidden_size * setting.activation_bytes
    sent, received = size * shares.stage_mask(stage), size * shares.stage_mask(stage + 1)
    return rows.add(
        f"stage{stage}",
        "transfer",
        "send",
        (source,),
        shares.group("pipeline"),
        sent=sent,
        received=received,
        reads=sent,
        writes=received,
        rows=shares.tokens,
        outer=setting.model.hidden_size,
    )


def node_table(
    setting: CoreSetting,
    operations: Sequence[Operation],
    steps: tuple[int, ...],
    nodes: Sequence[int] | None = None,
) -> Table:
    """Return operations as a table.

    Parameters
    ----------
    setting : CoreSetting
    operations : sequence of Operation
        From `node_operations`, of the same steps.
    steps : tuple of int
    nodes : sequence of int, optional
        Nodes that the table holds; all without it.

    Returns
    -------
    Table
        Dimensions ``node``, ``step`` and ``operation``.

    Raises
    ------
    StrategyError
        A node that there is not, or more cells than memory holds.
    """
    system = setting.system
    kept = np.arange(system.nodes) if nodes is None else np.array(sorted(set(nodes)), np.int64)
    if kept.size == 0 or kept.min() < 0 or kept.max() >= system.nodes:
        raise StrategyError(
            f"key 'nodes': the system has nodes 0 to {system.nodes - 1}, not "
            f"{', '.join(map(str, kept.tolist())) or 'none'}"
        )
    shape = (kept.size, len(steps), len(operations))
    check_memory(
        f"{len(operations):,} operations on {kept.size:,} nodes in {len(steps):,} steps",
        8.0 * np.prod(shape, dtype=float) * (len(VARIABLES) + 2),
        "choose some --nodes, --layers or the first and the last step",
        StrategyError,
    )
    data = {}
    for name in (*QUANTITIES, *SIZES):
        values = np.zeros((len(operations), kept.size, len(steps)))
        for at, one in enumerate(operations):
            if name in one.values:
                value = np.asarray(one.values[name], np.float64)
                values[at] = value[kept] if value.ndim == 2 and len(value) > 1 else value
        units, meaning = VARIABLES[name]
        data[name] = Column(
            ("node", "step", "operation"),
            np.moveaxis(values, 0, -1),
            {"units": units, "long_name": meaning},
        )
    for at, (name, meaning) in enumerate(
        (
            ("group_first", "first node of the group that it is done with"),
            ("group_stride", "from node to node of the group"),
            ("group_size", "nodes of the group; 1: alone"),
        )
    ):
        groups: Integers = np.stack([one.group[at][kept] for one in operations], axis=1)
        data[name] = Column(("node", "operation"), groups, {"units": "1", "long_name": meaning})
    coords = {
        "node": Column("node", kept, {"long_name": "node, row by row on the wafer"}),
        "step": Column("step", np.array(steps), {"long_name": f"step of {setting.phase}"}),
        "operation": _texts("operation", [one.name for one in operations], "operation"),
        "layer": _texts("operation", [one.layer for one in operations], "layer"),
        "component": _texts("operation", [one.component for one in operations], "component"),
        "kind": Column(
            "operation",
            np.array([KINDS.index(one.kind) for one in operations], np.int8),
            {
                "long_name": "kind of operation",
                "flag_values": np.arange(len(KINDS), dtype=np.int8),
                "flag_meanings": " ".join(KINDS),
            },
        ),
    }
    attrs = {
        **described(
            f"{setting.model.name} on {system.nodes} nodes, {setting.phase}", SCHEMA_VERSION
        ),
        "perfmodel_version": __version__,
        "model": setting.model.name,
        "phase": setting.phase,
        "batch": setting.batch,
        "input_length": setting.input_length,
        "speculative": setting.speculative,
        "weight_bytes": setting.weight_bytes,
        "activation_bytes": setting.activation_bytes,
        "cache_bytes": setting.cache_bytes,
        "system": json.dumps(dataclasses.asdict(system)),
        "provenance": json.dumps(versions()),
    }
    return Table(data, coords, attrs)


def _texts(dim: str, words: list[str], meaning: str) -> Column:
    return Column(dim, np.array(words), {"long_name": meaning})
