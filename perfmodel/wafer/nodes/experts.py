"""Operations of a layer with experts, on all nodes at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import StrategyError
from perfmodel.model.layers import MlpSpec
from perfmodel.wafer.cores.setting import CoreSetting, ceiling
from perfmodel.wafer.nodes.blocks import Blocks, all_gather, all_reduce
from perfmodel.wafer.system import bucket_sizes, expert_ranks, shared_nodes

RoutingOf = Callable[[int, int], Integers]
"""Step and layer -> experts of tokens, shape (sequences, drawn, experts per token): of every token,
or of some of each sequence that stand for all of it."""

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


def expert_layer(
    blocks: Blocks, layer: str, spec: MlpSpec, stage: int, source: int, amounts: dict[str, Floats]
) -> int:
    """Add a layer's experts: gate, dispatch, products, combine; return the number of its output."""
    shares, rows, setting, hidden = blocks.shares, blocks.rows, blocks.setting, blocks.hidden
    system = setting.system
    row = hidden * setting.activation_bytes
    here = shares.stage_mask(stage)
    owned = shares.owned * here
    group = shares.group("stage")

    gate = blocks.linear(layer, "moe.gate", (source,), owned, hidden, spec.experts)
    ready = rows.add(layer, "moe.barrier_dispatch", "barrier", (gate,), group)
    dispatch = _dispatch(blocks, layer, (source, ready), owned, amounts, row)
    made = [_experts(blocks, layer, spec, dispatch, amounts)]
    if spec.shared_intermediate_size:
        made.append(_shared(blocks, layer, spec, dispatch, amounts["shared"]))
    done = rows.add(layer, "moe.barrier_combine", "barrier", tuple(made), group)
    combine = _combine(blocks, layer, (*made, done), owned, amounts, row)
    summands = spec.experts_per_token + (spec.shared_intermediate_size > 0)
    total = rows.add(
        layer,
        "moe.sum",
        "add",
        (combine,),
        flops=2.0 * owned * summands * hidden,
        reads=owned * summands * row,
        writes=owned * row,
        rows=owned,
        outer=hidden,
        instances=summands,
    )
    cluster = shares.group("cluster")
    if system.cluster_nodes == 1:
        return total
    moved = all_gather(owned * row, shares.tokens * here * row)
    return rows.add(layer, "moe.all_gather", "all_gather", (total,), cluster, rows=owned, **moved)


def _dispatch(
    blocks: Blocks,
    layer: str,
    needs: tuple[int, ...],
    owned: Any,
    amounts: dict[str, Floats],
    row: float,
) -> int:
    """Add what brings tokens to the nodes of their experts."""
    exchange = blocks.setting.system.expert_exchange
    group = blocks.shares.group("stage")
    if exchange == "allgather":
        return blocks.rows.add(
            layer,
            "moe.dispatch",
            "all_gather",
            needs,
            group,
            rows=owned,
            outer=blocks.hidden,
            **_everywhere(blocks, owned, row),
        )
    kind, name = ("multicast", "cast") if exchange == "multicast" else ("all_to_all", "dispatched")
    rows = amounts[name]
    received = amounts["dispatch_received"] * row
    return _exchanged(blocks, layer, "moe.dispatch", kind, needs, rows * row, received, rows)


def _combine(
    blocks: Blocks,
    layer: str,
    needs: tuple[int, ...],
    owned: Any,
    amounts: dict[str, Floats],
    row: float,
) -> int:
    """Add what brings results back to the nodes of their tokens."""
    exchange = blocks.setting.system.expert_exchange
    group = blocks.shares.group("stage")
    if exchange == "allgather":  # sums of the stage's tokens, scattered: the ring the other way
        moved = _everywhere(blocks, owned, row)
        moved |= {
            "flops": moved["sent"] / blocks.setting.activation_bytes,
            "reads": 2 * moved["sent"],
        }
        return blocks.rows.add(
            layer,
            "moe.combine",
            "reduce_scatter",
            needs,
            group,
            rows=owned,
            outer=blocks.hidden,
            **moved,
        )
    kind = "unicast" if exchange == "multicast" else "all_to_all"
    sent, received = amounts["returned"] * row, amounts["return_received"] * row
    return _exchanged(
        blocks, layer, "moe.combine", kind, needs, sent, received, amounts["returned"]
    )


def _exchanged(
    blocks: Blocks,
    layer: str,
    component: str,
    kind: str,
    needs: tuple[int, ...],
    sent: Floats,
    received: Floats,
    tokens: Floats,
) -> int:
    """Add an exchange in which what is sent is read, and what comes is written [B]."""
    return blocks.rows.add(
        layer,
        component,
        kind,
        needs,
        blocks.shares.group("stage"),
        sent=sent,
        received=received,
        reads=sent,
        writes=received,
        rows=tokens,
        outer=blocks.hidden,
    )


def _everywhere(blocks: Blocks, owned: Any, row: float) -> dict[str, Any]:
    """Return a ring over the stage that brings every node's tokens to every node."""
    total = blocks.setting.batch * blocks.setting.length * row
    return all_gather(owned * row, total)  # nodes of other stages are masked with the layer


def _experts(
    blocks: Blocks, layer: str, spec: MlpSpec, source: int, amounts: dict[str, Floats]
) -> int:
    """Add the products of routed experts of a node, all experts together."""
    system, setting = blocks.setting.system, blocks.setting
    width = ceiling(spec.expert_intermediate_size, system.ffn_tensor_parallel)
    held = bucket_sizes(spec.experts, system.expert_parallel)[setting.ranks.expert][:, None]
    names = ("moe.up", "moe.gate_projection", "moe.down")
    rows = (amounts["worked"], amounts["active"], held)
    down = _network(blocks, layer, spec, source, names, rows, width)
    group = blocks.shares.group("ffn_tensor")
    if system.ffn_tensor_parallel == 1:
        return down
    element = setting.activation_bytes
    moved = all_reduce(amounts["worked"] * blocks.hidden * element, group[2][:, None], element)
    return blocks.rows.add(layer, "moe.all_reduce_tensor", "all_reduce", (down,), group, **moved)


def _grouped(
    blocks: Blocks,
    layer: str,
    component: str,
    needs: tuple[int, ...],
    worked: Floats,
    active: NDArray[Any],
    held: Integers,
    inner: int,
    outer: int,
) -> int:
    """Add one matrix of all experts of a node; only experts with tokens are read."""
    setting = blocks.setting
    weights = inner * outer * setting.weight_bytes
    return blocks.rows.add(
        layer,
        component,
        "grouped_linear",
        needs,
        macs=worked * inner * outer,
        footprint=held * weights,
        reads=active * weights + worked * inner * setting.activation_bytes,
        writes=worked * outer * setting.activation_bytes,
        rows=worked,
        inner=inner,
        outer=outer,
        instances=active,
    )


def _shared(blocks: Blocks, layer: str, spec: MlpSpec, source: int, worked: Floats) -> int:
    """Add the shared expert's copies."""
    system = blocks.setting.system
    copies = np.zeros(system.stage_nodes, np.int64)
    copies[shared_nodes(system)] = 1
    held = np.tile(copies, system.pipeline_parallel)[:, None]
    names = ("moe.shared_up", "moe.shared_gate", "moe.shared_down")
    rows = (worked, (worked > 0) * 1.0, held)
    return _network(blocks, layer, spec, source, names, rows, spec.shared_intermediate_size)


def _network(
    blocks: Blocks,
    layer: str,
    spec: MlpSpec,
    source: int,
    names: tuple[str, str, str],
    rows: tuple[Floats, NDArray[Any], Integers],
    width: int,
) -> int:
    """Add the products of a network: up, gate where there is one, down.

    `rows` are tokens worked on, experts that have any, and experts held.
    """
    up, gate, down = names
    first = (up, gate) if spec.gated else (up,)
    made = [_grouped(blocks, layer, name, (source,), *rows, blocks.hidden, width) for name in first]
    return _grouped(blocks, layer, down, tuple(made), *rows, width, blocks.hidden)
