"""Mixture-of-experts layers on one rank: router, grouped products, and what joins them.

The labelled pair of `perfmodel.kernels.matmul.grouped`; loads come from
`perfmodel.compute.routing`, ways to run a layer from `perfmodel.compute.grouped_gemm`.
docs/routing.md describes all three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Floats, Integers, broadcast, check_least
from perfmodel.base.errors import DataError
from perfmodel.base.precisions import OPERAND_BYTES, QUANTISED
from perfmodel.base.routing import Routing
from perfmodel.compute.grouped_gemm import (
    GROUPED_BOUNDS,
    Loads,
    MoeKernel,
    default_kernel,
    grouped_device,
    moe_constants,
    moe_kernel,
    pack_loads,
    tile_candidates,
)
from perfmodel.compute.routing import rank_loads
from perfmodel.compute.stream import stream_times
from perfmodel.hwprofiles import Hardware, load_hardware

MOE_BOUNDS = GROUPED_BOUNDS
PARTS = ("router", "permute", "quantise", "gate_up", "activation", "down", "combine")
ACTIVATION_BYTES = 2.0  # bf16 between the parts, unless a part quantises
SCORE_BYTES = 4.0  # the router's scores are fp32
INDEX_BYTES = 8.0  # a choice: expert or row, and weight
DRAWS = 5
"""Draws of a random routing that a time is the mean of."""


@dataclass(frozen=True)
class MoeTimes:
    """What `moe_times` returns; every array has shape (layer,).

    Attributes
    ----------
    time : ndarray of float64
        One layer on the busiest rank [s], without communication.
    parts : dict of str to ndarray
        Time of each of `PARTS` [s]; they sum to `time`.
    flops : ndarray of float64
        Of the two (gated: three) matrices and the tokens routed here [FLOP].
    memory_traffic : ndarray of float64
        Bytes from and to the device memory [B].
    active_experts, largest_load : ndarray of float64
        Experts of the rank that have tokens, and tokens of the busiest one.
    tile_m, tile_n : ndarray of int64
        Tile of the first product.
    bound : ndarray of uint8
        Index into `MOE_BOUNDS`, of the first product.
    """

    time: Floats
    parts: dict[str, Floats]
    flops: Floats
    memory_traffic: Floats
    active_experts: Floats
    largest_load: Floats
    tile_m: NDArray[np.int64]
    tile_n: NDArray[np.int64]
    bound: NDArray[np.uint8]


class _Rows(NamedTuple):
    """A layer's sizes, spread over the cases of its draws; all of shape (case,)."""

    hidden: Floats
    inner: Floats
    choices: Floats
    experts: Floats
    gates: Floats  # input matrices, 1 or 2
    routed: Floats  # 1 where the choice of experts is part of it
    tokens: Floats
    rows: Floats  # token and expert pairs that are here
    active: Floats  # experts that have rows
    local: Floats  # experts of the rank
    largest: Floats  # rows of the busiest expert


def moe_layer_times(
    hardware: Hardware,
    precision: str,
    loads: Loads,
    layer: Integers,
    load: Integers,
    hidden: Any,
    intermediate: Any,
    top_k: Any,
    experts: Any,
    gated: Any = True,
    *,
    kernel: str = "triton",
    router: Any = True,
    copies: float = 0.0,
    resident: float = 0.0,
    idle_data: bool = False,
    weight_bytes: float | None = None,
) -> MoeTimes:
    """Time layers whose loads are known.

    Parameters
    ----------
    hardware, precision, kernel, copies, resident, idle_data
        See `perfmodel.compute.grouped_gemm.grouped_device`.
    loads : Loads
        Distinct loads.
    layer, load : ndarray of int64, shape (case,)
        A case is one draw of a layer: which layer, in ascending order, and which load. A
        layer's time is the mean over its cases.
    hidden, intermediate : array_like, shape (layer,)
        Width of a token, and of an expert on this rank.
    top_k, experts : array_like, shape (layer,)
        Experts per token, and of all ranks (the router's width).
    gated, router : array_like of bool, shape (layer,)
        Two input matrices; whether the choice of experts is part of it (its matrix
        product is not: that is a dense product of its own).

    Returns
    -------
    MoeTimes
    """
    from perfmodel.kernels.matmul import grouped
    from perfmodel.kernels.work import kernel_work

    style = moe_kernel(kernel)
    device = grouped_device(
        hardware, precision, kernel, copies=copies, resident=resident, idle_data=idle_data
    )
    if weight_bytes is not None:
        device = device._replace(weight_bytes=weight_bytes)
    case = _rows(loads, layer, load, hidden, intermediate, top_k, experts, gated, router)
    tiles, first, last = tile_candidates(style, device.operand_bytes, case.tokens, case.local)

    fused = precision in style.fused_activation
    element = OPERAND_BYTES[precision]
    wide_inner = case.inner * case.gates
    one_matrix = case.active * case.hidden * case.inner * device.weight_bytes
    left = element / case.gates if fused else np.full(case.rows.size, ACTIVATION_BYTES)
    with kernel_work(grouped_gemms=2 * case.rows.size) as run:
        up = run(grouped.grouped_gemm_times)(
            load, *loads[1:], wide_inner, case.hidden, left, one_matrix,
            device, tiles, first, last,
        )  # fmt: skip
        down = run(grouped.grouped_gemm_times)(
            load, *loads[1:], case.hidden, case.inner,
            np.full(case.rows.size, ACTIVATION_BYTES), one_matrix * case.gates,
            device, tiles, first, last,
        )  # fmt: skip
    constant = moe_constants(hardware, precision, kernel)
    again = float(copies > 0.0 or resident > 0.0)
    parts, moved = _joining_parts(hardware, precision, style, case, constant, again)
    # Rows of other ranks' experts are filled with zeros, not left out.
    slots = case.tokens * case.choices if style.all_slots else case.rows
    filled = np.maximum(slots - case.rows, 0.0) * ACTIVATION_BYTES
    parts["gate_up"] = up[0] + filled * wide_inner / device.memory_bandwidth
    parts["down"] = down[0] + filled * case.hidden / device.memory_bandwidth
    columns = {
        "flops": 2.0 * case.rows * case.hidden * (wide_inner + case.inner),
        "memory_traffic": up[1] + down[1] + filled * (wide_inner + case.hidden) + moved,
        "active_experts": case.active,
        "largest_load": case.largest,
        **{name: parts[name] for name in PARTS},
    }
    return _mean_by_layer(layer, columns, tiles[up[2]], up[3])


def _rows(loads: Loads, layer: Integers, load: Integers, *columns: Any) -> _Rows:
    layers = int(layer.max()) + 1
    hidden, inner, choices, experts, gated, routed = (
        np.broadcast_to(np.asarray(column, np.float64), layers)[layer] for column in columns
    )
    starts = loads.offsets[:-1]
    used = np.where(loads.sizes > 0.0, loads.counts, 0.0)
    return _Rows(
        hidden=hidden,
        inner=inner,
        choices=choices,
        experts=experts,
        gates=np.where(gated > 0.0, 2.0, 1.0),
        routed=routed,
        tokens=loads.tokens[load],
        rows=np.add.reduceat(loads.sizes * loads.counts, starts)[load],
        active=np.add.reduceat(used, starts)[load],
        local=np.add.reduceat(loads.counts, starts)[load],
        largest=np.maximum.reduceat(loads.sizes, starts)[load],
    )


def _joining_parts(
    hardware: Hardware, precision: str, style: MoeKernel, case: _Rows, constant: Any,
    cached: float,
) -> tuple[dict[str, Floats], Floats]:  # fmt: skip
    """Return the times of the parts beside the two products [s], and their bytes."""
    element = OPERAND_BYTES[precision]
    quantised = float(precision in QUANTISED)
    apart = 0.0 if precision in style.fused_activation else 1.0
    busy = (case.rows > 0.0).astype(np.float64)
    slots = case.tokens * case.choices if style.all_slots else case.rows
    joined = np.where((case.choices > 1.0) | (not style.all_slots), 1.0, 0.0)
    choices = case.tokens * case.choices
    tokens = case.tokens * case.hidden
    again = quantised * apart * style.requantise_launches
    sorting = np.where(case.tokens > style.sorted_tokens, style.sorting_launches, 0.0)
    # read [B], written [B], kernels; one row per part
    plan = {
        "router": (
            case.routed * case.tokens * case.experts * SCORE_BYTES,
            case.routed * choices * INDEX_BYTES,
            case.routed * style.router_launches,
        ),
        "permute": (
            choices * INDEX_BYTES,
            slots * INDEX_BYTES,
            busy * (style.permute_launches + sorting),
        ),
        "quantise": (
            (tokens * quantised + slots * case.inner * again) * ACTIVATION_BYTES,
            (tokens * quantised + slots * case.inner * again) * element,
            busy * (quantised + again),
        ),
        "activation": (
            apart * case.rows * case.inner * case.gates * ACTIVATION_BYTES,
            apart * case.rows * case.inner * ACTIVATION_BYTES,
            busy * apart,
        ),
        "combine": (
            joined * slots * case.hidden * ACTIVATION_BYTES,
            joined * tokens * ACTIVATION_BYTES,
            joined * busy * style.combine_launches,
        ),
    }
    latency = constant("kernel_latency")
    start = float(hardware.calibrated("stream", "launch_latency"))
    parts: dict[str, Floats] = {}
    moved = np.zeros(case.rows.size)
    for name, (read, written, kernels) in plan.items():
        launches = np.maximum(kernels, 1.0)
        work = joined * choices * case.hidden * constant("combine_operations")
        body = stream_times(
            hardware, read, written, work * (name == "combine"), launches, cached
        ).time
        body = np.where(kernels > 0.0, body - launches * start, 0.0)
        parts[name] = body + kernels * latency
        moved += np.where(kernels > 0.0, read + written, 0.0)
    # Few blocks walk over all choices to count and place them.
    parts["permute"] += busy * choices * constant("sort_time")
    return parts, moved


def moe_times(
    hardware: Hardware | str,
    precision: str,
    tokens: Any,
    hidden: Any,
    intermediate: Any,
    experts: Any,
    top_k: Any,
    gated: Any = True,
    tensor_parallel: Any = 1,
    expert_parallel: Any = 1,
    routing: Routing | None = None,
    *,
    kernel: str | None = None,
    router: Any = True,
    copies: float = 0.0,
    resident: float = 0.0,
) -> MoeTimes:
    """Time mixture-of-experts layers on the busiest rank, one per entry.

    Parameters
    ----------
    hardware, precision, copies, resident
        See `perfmodel.compute.grouped_gemm.grouped_device`.
    tokens : array_like of int
        Tokens of all expert-parallel ranks together. All array arguments broadcast.
    hidden, intermediate : array_like of int
        Width of a token, and of one whole expert.
    experts, top_k : array_like of int
        Experts of the layer, and experts per token.
    gated : array_like of bool
        Three matrices (gate, up, down) or two.
    tensor_parallel, expert_parallel : array_like of int
        Ranks that share each expert's width, and ranks that share the experts.
    routing : Routing
        Distribution of the load; default uniform. A random one counts as the mean of
        `DRAWS` draws.
    kernel : str, optional
        One of `perfmodel.compute.grouped_gemm.KERNELS`; default: what serving libraries run on the
        device.
    router : array_like of bool
        Whether the choice of experts is part of the time.

    Returns
    -------
    MoeTimes
        Arrays of shape (layer,); a scalar call gives shape (1,).

    Raises
    ------
    DataError
        Sizes that are not whole, below 1, or don't divide.
    HardwareError
        See `perfmodel.compute.grouped_gemm.grouped_device`.
    """
    hardware = load_hardware(hardware)
    given = (tokens, hidden, intermediate, experts, top_k, tensor_parallel, expert_parallel)
    names = ("tokens", "hidden", "intermediate", "experts", "top_k", "tensor_parallel",
             "expert_parallel", "gated", "router")  # fmt: skip
    columns = broadcast("MoE layer", dict(zip(names, (*given, gated, router), strict=True)))
    gates, routers = columns.pop("gated") != 0.0, columns.pop("router") != 0.0
    check_least("MoE layer {row}", columns, 1.0, whole=True)
    count, wide, inner, width, choices, tp, ep = columns.values()
    if (inner % tp).any():
        row = int(np.argmax(inner % tp > 0))
        raise DataError(
            f"MoE layer {row}: intermediate size {inner[row]:g} does not divide among "
            f"{tp[row]:g} tensor-parallel ranks"
        )
    chosen = routing or Routing()
    keys, key = np.unique(np.stack([count, width, choices, ep]), axis=1, return_inverse=True)
    draws = DRAWS if chosen.random else 1
    drawn = [
        rank_loads(chosen, *(int(size) for size in column), draw)
        for column in keys.T
        for draw in range(draws)
    ]
    return moe_layer_times(
        hardware,
        precision,
        pack_loads(drawn),
        np.repeat(np.arange(count.size), draws),
        (np.ravel(key)[:, None] * draws + np.arange(draws)).ravel(),
        wide,
        inner / tp,
        choices,
        width,
        gates,
        kernel=kernel or default_kernel(hardware),
        router=routers,
        copies=copies,
        resident=resident,
    )


def _mean_by_layer(
    layer: Integers,
    columns: dict[str, Floats],
    tiles: Floats,
    bound: NDArray[np.uint8],
) -> MoeTimes:
    """Average the draws of each layer; the first one's tile and bound count."""
    layers = int(layer.max()) + 1
    number = np.maximum(np.bincount(layer, minlength=layers), 1)
    means = {
        name: np.bincount(layer, weights=column, minlength=layers) / number
        for name, column in columns.items()
    }
    first = np.searchsorted(layer, np.arange(layers))  # cases stand in order of their layers
    parts = {name: means.pop(name) for name in PARTS}
    return MoeTimes(
        time=np.sum(list(parts.values()), axis=0),
        parts=parts,
        tile_m=tiles[first, 0].astype(np.int64),
        tile_n=tiles[first, 1].astype(np.int64),
        bound=bound[first],
        **means,
    )
