"""All operations of a model on the nodes of a wafer, experts among them, and the table of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import StrategyError
from perfmodel.base.memory import check_memory
from perfmodel.base.provenance import versions
from perfmodel.base.table import Column, Table, described
from perfmodel.base.version import __version__
from perfmodel.kernels.variables import read_variables
from perfmodel.kernels.work import expect
from perfmodel.model.layers import MlpSpec
from perfmodel.wafer.nodes.blocks import Blocks, Result, Shares, all_gather, all_reduce
from perfmodel.wafer.nodes.rows import KINDS, QUANTITIES, SIZES, Operation, OperationRows
from perfmodel.wafer.routing import RoutingOf
from perfmodel.wafer.setting import LM_HEAD, CoreSetting, ceiling, check_layers
from perfmodel.wafer.system import bucket_sizes, bucket_starts, expert_ranks, shared_nodes

DRAWN_TOKENS = 1 << 14
"""Tokens of a layer whose experts are drawn where those of a prompt are many; they stand for
all. At 256 experts and 8 of a token, chance then moves an expert's load by
4 %, that of 4 or 5 experts by 2 %."""

AMOUNTS = (
    "dispatched",
    "dispatch_received",
    "cast",
    "worked",
    "active",
    "shared",
    "returned",
    "return_received",
)
"""Rows of tokens on each node, and experts that have any; in the order of the kernel."""


def expert_amounts(
    setting: CoreSetting,
    spec: MlpSpec,
    stage: int,
    layer: int,
    steps: tuple[int, ...],
    routing: RoutingOf,
) -> dict[str, Floats]:
    """Count rows of tokens on every node of the wafer in a layer with experts.

    Parameters
    ----------
    setting : CoreSetting
    spec : MlpSpec
    stage : int
        Pipeline stage of the layer; nodes of others have none.
    layer : int
    steps : tuple of int
    routing : RoutingOf

    Returns
    -------
    dict of str to array of float, shape (nodes, steps)
        `AMOUNTS`.
    """
    system = setting.system
    if spec.experts < system.expert_parallel:
        raise StrategyError(
            f"key 'expert_parallel': {system.expert_parallel} ranks for {spec.experts} experts"
        )
    own = slice(stage * system.stage_nodes, (stage + 1) * system.stage_nodes)
    found = {name: np.zeros((system.nodes, len(steps))) for name in AMOUNTS}
    for at, step in enumerate(steps):
        for name, rows in zip(
            AMOUNTS, _stage_amounts(setting, spec, routing(step, layer)), strict=True
        ):
            found[name][own, at] = rows
    return found


def _stage_amounts(setting: CoreSetting, spec: MlpSpec, experts: Integers) -> Floats:
    """Count rows on the nodes of one stage in one step, shape (`AMOUNTS`, nodes)."""
    from perfmodel.kernels.wafer import routes as kernel
    from perfmodel.kernels.work import kernel_work

    system = setting.system
    sequences, drawn = experts.shape[:2]
    if sequences != setting.batch or not 0 < drawn <= setting.length:
        raise StrategyError(
            f"key 'routing': {sequences} sequences of {drawn} tokens are not the "
            f"{setting.batch} of {setting.length} that are asked for"
        )
    shared = np.full(sequences, -1)
    if spec.shared_intermediate_size:
        shared = setting.shared_nodes
    counts = np.zeros((kernel.COUNTS, system.stage_nodes), np.int64)
    with kernel_work(expert_rows=experts.size):
        kernel.expert_rows(
            np.ascontiguousarray(experts, np.int64),
            bucket_sizes(setting.length, drawn),
            np.asarray(setting.owners, np.int64),
            shared,
            expert_ranks(system, spec.experts),
            system.ffn_tensor_parallel,
            system.ffn_data_parallel,
            counts,
        )
    amounts = counts.astype(np.float64)
    for whole, extra in (
        (kernel.RETURNED, kernel.SHARED_RETURNED),
        (kernel.RETURN_RECEIVED, kernel.SHARED_RETURN_RECEIVED),
    ):  # an expert's nodes have summed its results and return a part each
        amounts[whole] = amounts[whole] / system.ffn_tensor_parallel + amounts[extra]
    return amounts[: len(AMOUNTS)]


class ModelBlocks(Blocks):
    """Adds the blocks of a model, experts among them, to rows.

    Parameters
    ----------
    shares : Shares
    rows : OperationRows
    routing : RoutingOf or None
        None for a model without experts.
    """

    def __init__(self, shares: Shares, rows: OperationRows, routing: RoutingOf | None) -> None:
        super().__init__(shares, rows)
        self.routing = routing

    def experts(self, spec: MlpSpec, number: int, x: Result) -> Result:
        """Add a layer's experts: gate, dispatch, products, combine."""
        if self.routing is None:
            raise StrategyError(f"key 'routing': {self.setting.model.name} has experts")
        system, hidden = self.setting.system, self.hidden
        starts = bucket_starts(self.setting.model.num_layers, system.pipeline_parallel)
        stage = int(np.searchsorted(starts, number, side="right")) - 1
        amounts = expert_amounts(self.setting, spec, stage, number, self.shares.steps, self.routing)
        here = self.shares.stage_mask(stage)
        group, row = self.shares.group("stage"), hidden * self.setting.activation_bytes
        own = Result(x.needs, self.shares.owned * here)
        gate = self.linear("gate", own, hidden, spec.experts)
        ready = self.add("barrier_dispatch", "barrier", gate, group)
        there = self._dispatched(own._replace(needs=(*x.needs, ready)), amounts)
        made = self._routed(spec, there, amounts)
        if spec.shared_intermediate_size:
            made += self._shared(spec, there, amounts["shared"])
        done = self.add("barrier_combine", "barrier", Result(made, 0), group)
        back = self._combined(own._replace(needs=(*made, done)), amounts)
        summands = spec.experts_per_token + (spec.shared_intermediate_size > 0)
        total = self.add(
            "sum",
            "add",
            Result((back,), 0),
            flops=2.0 * own.tokens * summands * hidden,
            reads=own.tokens * summands * row,
            writes=own.tokens * row,
            rows=own.tokens,
            outer=hidden,
            instances=summands,
        )
        x = x._replace(needs=(total,))
        if system.cluster_nodes > 1:
            moved = all_gather(own.tokens * row, self.shares.tokens * here * row)
            cluster = self.shares.group("cluster")
            total = self.add("all_gather", "all_gather", x, cluster, rows=own.tokens, **moved)
        return x._replace(needs=(total,))

    def _dispatched(self, x: Result, amounts: dict[str, Floats]) -> int:
        """Add what brings tokens to the nodes of their experts."""
        exchange = self.setting.system.expert_exchange
        if exchange == "allgather":
            moved = self._everywhere(x)
            return self._exchanged("dispatch", "all_gather", x, x.tokens, **moved)
        cast = exchange == "multicast"
        kind, rows = ("multicast", "cast") if cast else ("all_to_all", "dispatched")
        moved = self._crossing(amounts[rows], amounts["dispatch_received"])
        return self._exchanged("dispatch", kind, x, amounts[rows], **moved)

    def _combined(self, x: Result, amounts: dict[str, Floats]) -> int:
        """Add what brings results back to the nodes of their tokens."""
        exchange = self.setting.system.expert_exchange
        if exchange == "allgather":  # sums of the stage's tokens, scattered: the ring back
            moved = self._everywhere(x)
            moved |= {
                "flops": moved["sent"] / self.setting.activation_bytes,
                "reads": 2 * moved["sent"],
            }
            return self._exchanged("combine", "reduce_scatter", x, x.tokens, **moved)
        kind = "unicast" if exchange == "multicast" else "all_to_all"
        moved = self._crossing(amounts["returned"], amounts["return_received"])
        return self._exchanged("combine", kind, x, amounts["returned"], **moved)

    def _exchanged(self, word: str, kind: str, x: Result, rows: Any, **moved: Any) -> int:
        group = self.shares.group("stage")
        return self.add(word, kind, x, group, rows=rows, outer=self.hidden, **moved)

    def _crossing(self, rows: Floats, received: Floats) -> dict[str, Any]:
        """Return what is moved where what is sent is read, and what comes is written [B]."""
        row = self.hidden * self.setting.activation_bytes
        sent, received = rows * row, received * row
        return {"sent": sent, "received": received, "reads": sent, "writes": received}

    def _everywhere(self, own: Result) -> dict[str, Any]:
        """Return a ring over the stage that brings every node's tokens to every node."""
        row = self.hidden * self.setting.activation_bytes
        total = self.setting.batch * self.setting.length * row
        return all_gather(own.tokens * row, total)  # other stages are masked with the layer

    def _routed(self, spec: MlpSpec, there: int, amounts: dict[str, Floats]) -> tuple[int, ...]:
        """Add the products of routed experts of a node, all experts together."""
        system, setting = self.setting.system, self.setting
        width = ceiling(spec.expert_intermediate_size, system.ffn_tensor_parallel)
        held = bucket_sizes(spec.experts, system.expert_parallel)[setting.ranks.expert][:, None]
        worked = amounts["worked"]
        down = self._network(
            "moe_exp", spec, Result((there,), worked, amounts["active"], held), width
        )
        if system.ffn_tensor_parallel == 1:
            return down.needs
        group, element = self.shares.group("ffn_tensor"), setting.activation_bytes
        moved = all_reduce(worked * self.hidden * element, group[2][:, None], element)
        return (self.add("all_reduce_tensor", "all_reduce", down, group, **moved),)

    def _shared(self, spec: MlpSpec, there: int, worked: Floats) -> tuple[int, ...]:
        """Add the shared expert's copies."""
        system = self.setting.system
        copies = np.zeros(system.stage_nodes, np.int64)
        copies[shared_nodes(system)] = 1
        held = np.tile(copies, system.pipeline_parallel)[:, None]
        given = Result((there,), worked, (worked > 0) * 1.0, held)
        return self._network("moe_shared", spec, given, spec.shared_intermediate_size).needs

    def _network(self, part: str, spec: MlpSpec, x: Result, width: int) -> Result:
        self.part = part
        made = self.network(x, width, spec.gated)
        self.part = "moe"
        return made


SCHEMA_VERSION = "1.0"
EMBEDDING = "embedding"

(_VARIABLES,) = read_variables(Path(__file__).with_name("variables.csv")).values()
VARIABLES = {variable.name: variable for variable in _VARIABLES}


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
        dims = ("node", "step", "operation")
        data[name] = Column(dims, np.moveaxis(values, 0, -1), VARIABLES[name].attributes())
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
