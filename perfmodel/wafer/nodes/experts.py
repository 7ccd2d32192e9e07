"""Operations of a layer with experts, on all nodes at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import StrategyError
from perfmodel.model.mlp import MlpSpec
from perfmodel.wafer.nodes.blocks import Blocks, Result, Shares, all_gather, all_reduce
from perfmodel.wafer.nodes.rows import OperationRows
from perfmodel.wafer.routing import RoutingOf
from perfmodel.wafer.setting import CoreSetting, ceiling
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
