"""Measured mixture-of-experts layers and grouped products; see `perfmodel.measured.kind`.

Two schemas, told apart by their columns: whole layers (``num_tokens``, ``hidden``, …) and
the grouped products of training (``groups``, ``m_per_group``, ``n``, ``k``, ``stage``).

A row of layers doesn't say what its benchmark ran besides the layer. What is known of the
benchmarks (aiconfigurator 095f58a, collector/*/collect_moe.py; aiter e404860) is written
down here, not in the model: see `_Benchmark`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError
from perfmodel.base.precisions import OPERAND_BYTES, format_name, rate_format
from perfmodel.base.regimes import regime_name
from perfmodel.base.routing import parse_routing
from perfmodel.compute.grouped_gemm import (
    GROUPED_BOUNDS,
    STAGES,
    Loads,
    even_loads,
    grouped_gemm_times,
    pack_loads,
)
from perfmodel.compute.moe import DRAWS, MOE_BOUNDS, MoeTimes, moe_layer_times
from perfmodel.compute.routing import assign, rank_loads
from perfmodel.hwprofiles import Hardware
from perfmodel.measured.kind import (
    Case,
    Columns,
    KernelKind,
    kernel_hardware,
    measured_time,
    stated,
)
from perfmodel.measured.rows import MeasuredRow, Skip

WHOLE = ("num_tokens", "hidden", "inter", "topk", "experts", "moe_tp", "moe_ep", "groups",
         "m_per_group", "n", "k")  # fmt: skip
PRODUCTS = ("bf16", "fp16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int8")

# Layers for which SGLang ships tuned tiles: experts on the rank -> width of an expert
# (names of its configuration files for A100 and H100, bf16).
TUNED_WIDTHS = {
    1: (1792, 3584, 7168, 14336),
    8: (1792, 2048, 3584, 4096, 7168, 14336),
    16: (1024, 1792, 2048, 3584, 7168),
}
ROUTER_GROUPS, ROUTER_GROUPS_KEPT = 8, 4  # DeepSeek-V3 technical report, section 4.2
TWO_MATRICES_TOP_K = 22
"""Only Nemotron routes to 22 experts, and its experts have no gate; the tables say so
for some of its sizes only."""


@dataclass(frozen=True)
class _Benchmark:
    """What is the same for all rows priced in one call.

    Attributes
    ----------
    precision, kernel, routing : str
    weight_bytes : float, optional
        Of a weight, scales included [B]; None: as wide as the operand of the product.
    local_only : bool
        Tokens without an expert on the rank are left out, and choices of other ranks'
        experts go to the rank's first expert, at full cost: SGLang's plain function, in
        0.5.10 for all models, later only for Mixtral. Expert choice is then not part of it.
    idle_data : bool
        Weights are all zeros.
    products_only : bool
        Only the two products were timed.
    tied : bool
        The scores, one for chosen experts and zero for others, went through
        DeepSeek-V3's choice of groups, which they tie; see `_tied_loads`.
    copies : float
        Of the weights, that the benchmark goes round; one where the table says nothing.
    """

    precision: str
    kernel: str
    routing: str
    local_only: bool = False
    idle_data: bool = False
    products_only: bool = False
    tied: bool = False
    weight_bytes: float | None = None
    copies: float = 1.0


def check(row: MeasuredRow) -> None:
    """Raise DataError where a stage is not known."""
    stage = row.text("stage")
    if row.text("groups") and stage and stage not in STAGES:
        raise row.error("stage", " or ".join(STAGES))


def derived(row: MeasuredRow) -> dict[str, str]:
    """Return the ``regime`` of a row."""
    tokens = row.whole("num_tokens")
    groups, each = row.whole("groups"), row.whole("m_per_group")
    if groups and each:
        tokens = groups * each
    return {"regime": regime_name("moe", tokens) if tokens else ""}


def case_of(row: MeasuredRow) -> Case:
    """Read a row.

    Raises
    ------
    Skip
        A shape, a profile or a precision is missing.
    """
    hardware, notes = kernel_hardware(row)
    measured = measured_time(row)
    if row.text("groups"):
        sizes = {name: float(stated(row, name)) for name in ("groups", "m_per_group", "n", "k")}
        notes = (*notes, "one launch per group")
        variant = (row.text("stage") or "fwd", _precision(row)[0])
        return Case(hardware, variant, sizes, measured, notes)
    sizes = {
        name: float(stated(row, name))
        for name in ("num_tokens", "hidden", "inter", "topk", "experts", "moe_tp", "moe_ep")
    }
    if sizes["inter"] % sizes["moe_tp"] or sizes["experts"] % sizes["moe_ep"]:
        raise Skip("experts don't divide among the ranks", scorable=False)
    benchmark, more = _benchmark(row, hardware, sizes)
    benchmark = replace(benchmark, copies=float(row.whole("copies") or 1))
    gated = row.lower("gated") not in ("false", "0", "no")
    if benchmark.local_only and not gated:
        gated, more = True, (*more, "timed with a gate, as all rows of this benchmark")
    elif gated and sizes["topk"] == TWO_MATRICES_TOP_K:
        gated, more = False, (*more, "two matrices per expert (Nemotron)")
    _check_peak(hardware, benchmark, sizes, gated, measured)
    return Case(hardware, benchmark, {**sizes, "gated": float(gated)}, measured, (*notes, *more))


def price(hardware: Hardware, variant: Any, columns: Columns) -> Columns:
    """Price rows of one variant."""
    if isinstance(variant, tuple):
        stage, precision = variant
        found = grouped_gemm_times(
            hardware,
            precision,
            even_loads(columns["groups"], columns["m_per_group"]),
            columns["n"],
            columns["k"],
            stage=stage,
            launches="each",
            steady=True,
        )
        return {"time": found.time, "bound": np.array(GROUPED_BOUNDS)[found.bound]}
    times = _layer_times(hardware, variant, columns)
    total = times.time
    if variant.products_only:
        total = times.parts["gate_up"] + times.parts["down"]
    return {
        "time": total,
        "kernel": np.full(total.size, variant.kernel),
        "active_experts": times.active_experts,
        "largest_load": times.largest_load,
        "tile_m": times.tile_m,
        "tile_n": times.tile_n,
        "bound": np.array(MOE_BOUNDS)[times.bound],
        **{f"{name}_time": part for name, part in times.parts.items()},
    }


def _layer_times(hardware: Hardware, variant: _Benchmark, columns: Columns) -> MoeTimes:
    names = ("num_tokens", "experts", "topk", "moe_ep")
    keys, key = np.unique(np.stack([columns[name] for name in names]), axis=1, return_inverse=True)
    draws = DRAWS if parse_routing(variant.routing).random else 1
    distinct = tuple(tuple(int(size) for size in column) for column in keys.T)
    return moe_layer_times(
        hardware,
        variant.precision,
        _packed(variant, distinct, draws),
        np.repeat(np.arange(key.size), draws),
        (np.ravel(key)[:, None] * draws + np.arange(draws)).ravel(),
        columns["hidden"],
        columns["inter"] / columns["moe_tp"],
        columns["topk"],
        columns["experts"],
        columns["gated"],
        kernel=variant.kernel,
        router=(columns["moe_ep"] == 1) | (not variant.local_only),
        copies=variant.copies,
        idle_data=variant.idle_data,
        weight_bytes=variant.weight_bytes,
    )


def _check_peak(
    hardware: Hardware, benchmark: _Benchmark, sizes: dict[str, float], gated: bool, time: float
) -> None:
    """Refuse a measurement that no kernel can have reached, as some tuners' tables hold."""
    peak = hardware.device.peak_flops.get(rate_format(benchmark.precision))
    rows = sizes["num_tokens"] * sizes["topk"] / sizes["moe_ep"]
    width = sizes["inter"] / sizes["moe_tp"]
    flops = 2.0 * rows * sizes["hidden"] * width * (3.0 if gated else 2.0)
    even = benchmark.routing in ("balanced", "uniform")
    if peak and even and flops > peak * time:
        detail = f"{flops / time / 1e12:.0f} of {peak / 1e12:.0f} TFLOP/s"
        raise Skip("faster than the device's peak", detail, scorable=False)


@lru_cache(maxsize=256)
def _packed(benchmark: _Benchmark, distinct: tuple[tuple[int, ...], ...], draws: int) -> Loads:
    """Return the loads of all draws; kept, since a calibration asks again and again."""
    return pack_loads(
        [_loads(benchmark, *sizes, draw) for sizes in distinct for draw in range(draws)]
    )


@lru_cache(maxsize=1 << 14)
def _loads(
    benchmark: _Benchmark, tokens: int, experts: int, top_k: int, ranks: int, draw: int
) -> tuple[float, Integers]:
    """Return the tokens on the measured rank, and of each of its experts."""
    routing = parse_routing(benchmark.routing)
    if benchmark.tied:
        counts = _tied_loads(assign(routing, tokens, experts, top_k, draw), experts)
        return float(tokens), counts[: experts // ranks]
    here, loads = rank_loads(routing, tokens, experts, top_k, ranks, draw)
    if not benchmark.local_only or ranks == 1:
        return float(tokens), loads
    loads = loads.copy()
    loads[0] += here * top_k - loads.sum()
    return float(here), loads


def _tied_loads(assignment: Integers, experts: int) -> Integers:
    """Return loads after DeepSeek-V3's router has chosen again among tied scores.

    It keeps the four of eight groups with the largest sum of two best scores, then the
    best experts in them. Chosen experts of other groups are lost, and the first experts
    of the first group kept stand in for them: of balanced scores, experts 0 to 3 for all.
    """
    tokens, top_k = assignment.shape
    chosen = np.zeros((tokens, experts), bool)
    np.put_along_axis(chosen, assignment, True, axis=1)
    size = experts // ROUTER_GROUPS
    scores = np.minimum(chosen.reshape(tokens, ROUTER_GROUPS, size).sum(axis=2), 2)
    kept = np.argsort(-scores, axis=1, kind="stable")[:, :ROUTER_GROUPS_KEPT]
    allowed = np.zeros((tokens, ROUTER_GROUPS), bool)
    np.put_along_axis(allowed, kept, True, axis=1)
    value = np.repeat(allowed, size, axis=1) * (1 + chosen.astype(np.int8))
    again = np.argsort(-value, axis=1, kind="stable")[:, :top_k]
    return np.bincount(again.ravel(), minlength=experts)


def _benchmark(
    row: MeasuredRow, hardware: Hardware, sizes: dict[str, float]
) -> tuple[_Benchmark, tuple[str, ...]]:
    framework, text = row.lower("framework"), row.lower("kernel")
    precision, weight_bytes = _precision(row)
    routing = row.lower("distribution") or "balanced"
    notes: tuple[str, ...] = ()
    if framework == "aiter":
        # Times follow the experts that random choices leave active: 16 tokens with 8 of 128 take
        # 0.67 of what all experts would.
        notes = ("tuner's time of the two products, random loads",)
        found = _Benchmark(precision, "aiter", "uniform", products_only=True)
        return replace(found, weight_bytes=weight_bytes), notes
    try:
        parse_routing(routing)
    except DataError as error:
        raise Skip("unknown distribution of loads", str(error)) from None
    deepseek = (sizes["hidden"], sizes["inter"], sizes["experts"]) == (7168, 2048, 256)
    if "triton" in text or "vllm_fused_moe" in text:
        width = int(sizes["inter"] // sizes["moe_tp"])
        local = int(sizes["experts"] // sizes["moe_ep"])
        tuned = precision == "bf16" and width in TUNED_WIDTHS.get(local, ())
        kernel = "triton_tuned" if tuned else "triton"
        old = hardware.device.architecture.startswith("Ampere")
        plain = framework == "sglang" and (old or sizes["experts"] == 8)
        idle = framework == "sglang" and not plain
        tied = idle and deepseek
        return _Benchmark(precision, kernel, routing, plain, idle, tied=tied), notes
    generated = "trtllm" in text or "min_latency" in text
    return _Benchmark(
        precision,
        "trtllm" if generated else "cutlass",
        routing,
        idle_data=framework == "sglang",
        tied=framework == "sglang" and deepseek,
    ), notes


PAIR = re.compile(
    r"(?P<left>bfloat16|float8_\w+?|float4_\w+?)x(?P<right>float8_\w+|float4_\w+|int4)"
)
"""Operands of a product as AITER names them: activations, then weights."""
INT4_BYTES = 0.5 + 2.0 / 32  # one 16-bit scale of 32 weights (per_1x32)


def _precision(row: MeasuredRow) -> tuple[str, float | None]:
    """Return the format that is multiplied, and the bytes of a weight where it is narrower.

    A product of two widths runs at the rate of the wider one: weights are widened on their way,
    or the matrix instruction takes both (CDNA4's scaled formats).
    """
    text = row.lower("dtype")
    if format_name(text) in PRODUCTS:
        return format_name(text), None
    pair = PAIR.fullmatch(text)
    if pair is None:
        raise Skip("precision not modelled", text)
    left, right = pair["left"].partition("_")[0], pair["right"].partition("_")[0]
    block = "1x128" in row.lower("kernel")
    wide = {
        "bfloat16": "bf16",
        "float8": "fp8_block" if block else "mxfp8" if "1x32" in row.lower("kernel") else "fp8",
        "float4": "mxfp4",
    }[left]
    narrow = {"float8": None, "float4": OPERAND_BYTES["mxfp4"], "int4": INT4_BYTES}[right]
    return wide, None if left == right else narrow


KIND = KernelKind(
    name="moe",
    needed=("hardware", "dtype", "time_us"),
    group_by=("hardware", "framework", "dtype", "regime"),
    whole=(*WHOLE, "copies"),
    check=check,
    derived=derived,
    case_of=case_of,
    price=price,
    kernel_class="moe",
    calibration="moe",
    alike=("hidden", "inter", "experts", "moe_tp", "moe_ep"),
)
