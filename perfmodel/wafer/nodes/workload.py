"""All operations of a model on the nodes of a wafer, and the table of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from perfmodel._version import __version__
from perfmodel.base.columns import Integers
from perfmodel.base.errors import StrategyError
from perfmodel.base.memory import check_memory
from perfmodel.base.provenance import versions
from perfmodel.base.table import Column, Table, described
from perfmodel.kernels.work import expect
from perfmodel.wafer.nodes.blocks import Result, Shares
from perfmodel.wafer.nodes.experts import ModelBlocks
from perfmodel.wafer.nodes.rows import KINDS, QUANTITIES, SIZES, Operation, OperationRows
from perfmodel.wafer.routing import RoutingOf
from perfmodel.wafer.setting import LM_HEAD, CoreSetting, check_layers
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
        Those of `perfmodel.wafer.setting.layer_names`; all without it, and the embedding.

    Raises
    ------
    StrategyError
        A layer that the model does not have, or experts without a routing.
    """
    chosen = check_layers(setting, layers)
    system, rows = setting.system, OperationRows(setting.system.nodes)
    shares = Shares(setting, steps)
    blocks = ModelBlocks(shares, rows, routing)
    expect(expert_rows=_draws(setting, chosen) * len(steps))
    if layers is None:
        x = _on_stage(rows, shares, 0, partial(blocks.embedding, EMBEDDING))
    else:
        x = Result((rows.add("input", "tokens", "barrier"),), shares.tokens)
    repeated: dict[object, tuple[int, int, Result, Result]] = {}  # first, end, input, output
    starts = bucket_starts(setting.model.num_layers, system.pipeline_parallel)
    for stage, (first_layer, end_layer) in enumerate(pairwise(starts.tolist())):
        for number in range(first_layer, end_layer):
            name, spec = f"{setting.phase}{number}", setting.model.layers[number]
            if name not in chosen:
                continue
            key = (spec.attentions[0], stage)
            if key in repeated:
                first, end, given, output = repeated[key]
                copies = rows.again(first, end, name, {given.needs[0]: x.needs[0]})
                blocks.layer, x = name, output._replace(needs=(copies[output.needs[0]],))
            else:
                first, given = len(rows.operations), x
                x = _on_stage(
                    rows, shares, stage, partial(blocks.attention, name, spec.attentions[0], x)
                )
                repeated[key] = (first, len(rows.operations), given, x)
            follow = partial(blocks.network_or_experts, spec.mlps[0], number, x)
            x = _on_stage(rows, shares, stage, follow)
        if stage + 1 < system.pipeline_parallel:
            x = _handed_on(rows, shares, stage, x)
    if LM_HEAD in chosen:
        _on_stage(rows, shares, system.pipeline_parallel - 1, partial(blocks.head, x))
    return rows.operations


def _draws(setting: CoreSetting, chosen: Collection[str]) -> int:
    """Return about how many experts tokens are given in a step."""
    return sum(
        setting.batch * mlp.experts_per_token
        for at, layer in enumerate(setting.model.layers)
        for mlp in layer.mlps
        if mlp.experts and f"{setting.phase}{at}" in chosen
    )


def _on_stage(rows: OperationRows, shares: Shares, stage: int, add: Callable[[], Result]) -> Result:
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


def _handed_on(rows: OperationRows, shares: Shares, stage: int, x: Result) -> Result:
    """Add the transfer of activations to the next stage: every node to the one of its rank."""
    setting = shares.setting
    size = shares.tokens * setting.model.hidden_size * setting.activation_bytes
    sent, received = size * shares.stage_mask(stage), size * shares.stage_mask(stage + 1)
    made = rows.add(
        f"stage{stage}",
        "transfer",
        "send",
        x.needs,
        shares.group("pipeline"),
        sent=sent,
        received=received,
        reads=sent,
        writes=received,
        rows=shares.tokens,
        outer=setting.model.hidden_size,
    )
    return x._replace(needs=(made,))


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
