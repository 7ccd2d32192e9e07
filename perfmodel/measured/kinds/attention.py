"""Measured attention kernels, row by row; see `perfmodel.measured.kind` for the rest.

Rows of serving frameworks are replayed graphs (see `perfmodel.compute.attention`);
others are loops around one kernel. The constants of the profiles follow the reference
framework: SGLang with the attention library of the device's generation
(``framework == "sglang"``), TensorRT-LLM where that is missing. Other frameworks run the
same model with what they launch beside the kernel.

Of latent attention (`LATENT`) ``fwd`` rows run all heads with their own keys and values (192 and
128 wide); ``decode`` rows run the absorbed form: all heads share one key of 576, whose first 512
elements are the value.

`SPARSE` are layers of DeepSeek-V4, which a table names by their compression ratio: 0 for the window
alone, 4 for selected compressed keys (CSA), 128 for all compressed keys (HCA). Several
implementations may stand in it with times of one problem. The model answers for a kernel as good as
can be bought: rows that are the `fastest` of their shape judge it, and `of_fastest` of the others
says how far they are behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.precisions import ATTENTION_PRECISIONS, OPERAND_BYTES
from perfmodel.base.regimes import regime_name
from perfmodel.compute.attention import (
    ATTENTION_BOUNDS,
    SERVING,
    AttentionTimes,
    Call,
    attention_times,
    replayed_times,
    small_kernels,
)
from perfmodel.compute.attention_device import generation_slowdown
from perfmodel.compute.sparse_attention import sparse_attention_times, sparse_keys
from perfmodel.hwprofiles import Hardware
from perfmodel.measured.kind import (
    Case,
    Columns,
    KernelKind,
    check_steady,
    kernel_hardware,
    measured_time,
    stated,
    steady_load,
)
from perfmodel.measured.rows import TRUTH, MeasuredRow, Skip

PHASES = {"fwd": "attention", "bwd": "attention_backward", "decode": "decode"}
"""Phase, or pass, of a table -> kernel class of `perfmodel.base.regimes`."""

COUNTS = ("batch", "heads", "kv_heads", "d_qk", "d_v", "q_len", "kv_len")

# SGLang rows of width 192 are those of models with narrower values (MiMo-V2: 192 and 128);
# with values of 192 they would read more than the memory's peak.
NARROW_VALUES = {("sglang", 192): 128}


WHOLE_CACHE = {("sglang", "trtllm_mha"): 8192}
"""Framework and kernel -> window that decode does not apply: chunked attention (Llama 4), for which
the kernel has no mask. The rows take the time of the whole cache."""

UNFUSED = ("pyt_math",)
"""Ends of the frameworks whose attention is no single kernel."""

FLASHINFER = ("flashinfer", "vllm_flashinfer_fiprefill", "vllm_flashinfer_fidecode")
"""Kernels that are FlashInfer's own; it also launches TensorRT-LLM's."""

GENERATION_2 = ("torch/flash_attention", "torch/pyt_flash_attention", "sdpa_flash", "flash_attn")
"""Frameworks and kernels that are FlashAttention-2 whatever the device."""

EAGER_START = {"transformerengine/flash-attn": 45e-6}
"""Framework -> time of the forward call before its kernel starts [s], where rows are loops around
a Python call: SimuMax 4dcaae5 B200, time against heads at 4096 tokens, extrapolated to none."""


class Variant(NamedTuple):
    """What is the same for all rows priced in one call."""

    precision: str
    kv_precision: str
    backward: bool
    replayed: bool
    copies: float  # of the tensors, that the benchmark goes round; 0: from memory
    library: str
    generation: int  # of FlashAttention; 0: that of the device
    start: float  # before the kernel [s]
    steady: bool
    alone: bool


def check(row: MeasuredRow) -> None:
    """Raise DataError where a word is not understood."""
    check_steady(row)
    if row.text("causal") and row.lower("causal") not in TRUTH:
        raise row.error("causal", "True or False")


def derived(row: MeasuredRow) -> dict[str, str]:
    """Return the ``regime`` of a row."""
    kernel_class = PHASES.get(row.lower("phase"))
    sizes = [row.whole(name) for name in ("batch", "heads", "d_qk", "d_v", "q_len", "kv_len")]
    if kernel_class is None or None in sizes:
        return {"regime": ""}
    batch, heads, width_qk, width_v, queries, keys = (float(size or 0) for size in sizes)
    window = row.number("window") or 0.0
    if kernel_class == "decode":
        seen = min(keys, queries + window - 1.0) if window else keys
        stored = (row.whole("kv_heads") or heads) * (width_qk + width_v)
        quantity = batch * seen * stored * element_bytes(row)
    else:
        pairs = unmasked_pairs(queries, keys, is_causal(row), window)
        quantity = 2.0 * pairs * (width_qk + width_v) * heads * batch
    return {"regime": regime_name(kernel_class, quantity)}


def unmasked_pairs(queries: float, keys: float, causal: bool, window: float) -> float:
    """Return the pairs of query and key that a mask leaves in one head of one sequence.

    A window that is not causal counts both sides, without what the ends cut off.
    """
    if not causal:
        return queries * (min(keys, 2.0 * window - 1.0) if window else keys)
    first = keys - queries + 1.0  # keys that the first query sees
    if not window or keys <= window:
        return queries * (first + keys) / 2.0
    short = min(queries, max(0.0, window - first))
    return short * (2.0 * first + short - 1.0) / 2.0 + (queries - short) * window


def is_causal(row: MeasuredRow) -> bool:
    """Return the mask of a row; causal where nothing is stated."""
    return row.truth("causal", True)


def element_bytes(row: MeasuredRow) -> float:
    """Return the bytes of one stored key or value element [B]."""
    stored = row.lower("kv_dtype") or row.lower("dtype")
    return OPERAND_BYTES[stored if stored in ATTENTION_PRECISIONS else "bf16"]


def precisions(row: MeasuredRow, hardware: Hardware) -> tuple[str, str]:
    """Return the precision of the matrix products and that of the cache.

    With an fp8 cache the libraries cast the queries too, where the device multiplies fp8;
    FlashInfer's own kernels widen the keys instead, portable ones in decode.

    Raises
    ------
    Skip
        A precision that attention does not have.
    """
    stated_precision = row.lower("dtype") or "bf16"
    stored = row.lower("kv_dtype") or stated_precision
    for name in (stated_precision, stored):
        if name not in ATTENTION_PRECISIONS:
            raise Skip("attention has no such precision", name)
    library = library_of(row)
    portable_decode = library == "portable" and row.lower("phase") == "decode"
    if stored == "fp8" and (library == "flashinfer" or portable_decode):
        return "bf16", stored
    if stored == "fp8" and "fp8" in hardware.device.peak_flops:
        return "fp8", stored
    return stated_precision, stored


def library_of(row: MeasuredRow) -> str:
    """Return the library of a row's kernel, as `attention_device` names it."""
    if "triton" in row.lower("kernel"):
        return "portable"
    kernel = row.lower("kernel")
    if kernel in FLASHINFER:
        return "flashinfer"
    if kernel == "vllm_flash_attn_fa2":
        return "fa2"
    return "trtllm" if row.lower("framework") == "trtllm" else ""


def case_of(row: MeasuredRow) -> Case:
    """Turn a row into what the model needs.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    return attention_case(row, stated(row, "heads") if not row.text("kv_heads") else None)


def attention_case(
    row: MeasuredRow, key_value_heads: int | None = None, latent: bool = False
) -> Case:
    """Turn a row into what the model needs.

    Parameters
    ----------
    row : MeasuredRow
    key_value_heads : int, optional
        In place of the row's ``kv_heads``.
    latent : bool
        Whether the row belongs to latent attention, absorbed in decode.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    phase = row.lower("phase")
    if phase not in PHASES:
        raise Skip("unknown phase", phase)
    hardware, notes = kernel_hardware(row)
    precision, stored = precisions(row, hardware)
    framework = row.lower("framework")
    if framework.endswith(UNFUSED):
        raise Skip("unfused reference implementation", scorable=False)
    width_qk, width_v = stated(row, "d_qk"), stated(row, "d_v")
    if not latent and width_v == width_qk and (framework, width_qk) in NARROW_VALUES:
        width_v = NARROW_VALUES[framework, width_qk]
        notes = (*notes, f"values of {framework} taken as {width_v} wide")
    window = row.number("window") or 0.0
    whole = WHOLE_CACHE.get((framework, row.lower("kernel")))
    if phase == "decode" and window == whole:
        window = 0.0
        notes = (*notes, "the kernel reads the whole cache")
    shared = stated(row, "kv_heads") if key_value_heads is None else key_value_heads
    sizes = {
        "batch": float(stated(row, "batch")),
        "query_length": float(stated(row, "q_len")),
        "key_length": float(stated(row, "kv_len")),
        "heads": float(stated(row, "heads")),
        "key_value_heads": float(shared),
        "head_dim_qk": float(width_qk),
        "head_dim_v": float(width_v),
        "causal": float(is_causal(row)),
        "window": window,
        "latent": float(latent and phase == "decode"),
        "prefill": float(phase == "fwd"),
    }
    call = Call(
        framework,
        row.lower("kernel"),
        phase,
        row.lower("kv_dtype") or stored,
        latent,
        is_causal(row),
        sizes["batch"],
        sizes["query_length"],
        sizes["heads"],
        sizes["key_value_heads"],
        sizes["head_dim_qk"],
        sizes["head_dim_v"],
        # FlashInfer's prefill then is its CUTLASS kernel, planned on the device.
        library_of(row) == "flashinfer"
        and phase == "fwd"
        and hardware.device.instruction_class == "tcgen05",
    )
    replayed = framework in SERVING
    beside = small_kernels(call)
    sizes |= {"launches": beside.launches, "moved": beside.moved}
    steady, alone = steady_load(row)
    second = phase != "decode" and not {framework, call.kernel}.isdisjoint(GENERATION_2)
    variant = Variant(
        precision=precision,
        kv_precision=stored,
        backward=phase == "bwd",
        replayed=replayed,
        copies=float(row.whole("copies") or replayed),
        library=library_of(row),
        generation=2 if second else 0,
        start=EAGER_START.get(framework, 0.0) if phase == "fwd" else 0.0,
        steady=steady,
        alone=alone,
    )
    return Case(hardware, variant, sizes, measured_time(row), notes)


def price(hardware: Hardware, variant: Variant, columns: Columns) -> Columns:
    """Price rows of one device and variant: ``time`` [s] and bound."""
    shapes: dict[str, Any] = {
        name: column for name, column in columns.items() if name not in ("launches", "moved")
    }
    if variant.replayed:
        found: AttentionTimes = replayed_times(
            hardware,
            variant.precision,
            shapes,
            columns["launches"],
            columns["moved"],
            kv_precision=variant.kv_precision,
            library=variant.library,
            copies=variant.copies,
        )
    else:
        found = attention_times(
            hardware,
            variant.precision,
            **shapes,
            backward=variant.backward,
            kv_precision=variant.kv_precision,
            library=variant.library,
            steady=variant.steady,
            alone=variant.alone,
            copies=variant.copies,
        )
    time = found.time + variant.start
    if variant.generation:
        time = time * generation_slowdown(hardware, variant.generation, variant.backward)
    return {"time": time, "bound": np.array(ATTENTION_BOUNDS)[found.bound]}


KIND = KernelKind(
    name="attention",
    needed=("hardware", "phase", "batch", "heads", "d_qk", "d_v", "q_len", "kv_len", "time_us"),
    group_by=("hardware", "dtype", "framework", "phase", "regime"),
    whole=(*COUNTS, "copies"),
    numbers=("window",),
    check=check,
    derived=derived,
    case_of=case_of,
    price=price,
    kernel_class="attention",
    phases=PHASES,
    calibration="attention",
    alike=("phase", "heads", "kv_heads", "d_qk", "batch"),
)


def latent_derived(row: MeasuredRow) -> dict[str, str]:
    """Return the ``regime`` of a row; bytes of a shared cache in decode."""
    names = ("batch", "heads", "d_qk", "d_v", "q_len", "kv_len")
    sizes = [row.whole(name) for name in names]
    if row.lower("phase") not in ("fwd", "decode") or None in sizes:
        return {"regime": ""}
    batch, heads, width_qk, width_v, queries, keys = (float(size or 0) for size in sizes)
    if row.lower("phase") == "decode":
        return {"regime": regime_name("decode", batch * keys * width_qk * element_bytes(row))}
    pairs = unmasked_pairs(queries, keys, True, 0.0)
    return {"regime": regime_name("attention", 2.0 * pairs * (width_qk + width_v) * heads * batch)}


def latent_case_of(row: MeasuredRow) -> Case:
    """Turn a row into what the model needs.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    decode = row.lower("phase") == "decode"
    return attention_case(row, 1 if decode else stated(row, "heads"), latent=True)


LATENT = replace(
    KIND,
    name="mla",
    group_by=("hardware", "kv_dtype", "framework", "phase", "regime"),
    derived=latent_derived,
    case_of=latent_case_of,
    alike=("phase", "heads", "batch"),
)


PASSES = {"fwd": "forward", "bwd": "backward", "decode": "decode"}
"""Pass of a table -> phase of `sparse_attention_times`."""

SPARSE_COUNTS = ("heads", "seq", "mbs", "index_topk", "head_dim", "window")

HEAD_DIM, WINDOW = 512, 128
"""Width of a head and tokens of a window where a table states none: DeepSeek-V4's."""

INDEX_TOP_K = {"deepseek-v4-flash": 512, "deepseek-v4-pro": 1024}
"""Model -> ``index_topk`` of its config.json, keys that ratio 4 chooses."""

SHAPE = ("hardware", "pass", "heads", "seq", "mbs", "compress_ratio", "index_topk", "model")
"""Columns in which rows of one problem agree."""


class SparseVariant(NamedTuple):
    """What is the same for all rows priced in one call."""

    phase: str
    precision: str


def sparse_check(row: MeasuredRow) -> None:
    """Raise DataError where a ratio is no whole number."""
    ratio = row.number("compress_ratio")
    if ratio is not None and ratio != int(ratio):
        raise row.error("compress_ratio", "a whole number, 0 for the window alone")


def sparse_derived(row: MeasuredRow) -> dict[str, str]:
    """Return the ``regime`` of a row."""
    try:
        sizes = shape(row)
    except Skip:
        return {"regime": ""}
    keys = sparse_keys(
        sizes["query_length"],
        sizes["key_length"],
        selected=sizes["selected"],
        window=sizes["window"],
        compression=sizes["compression"],
    )
    quantity = 4.0 * float(keys.pairs) * sizes["heads"] * sizes["head_dim_qk"] * sizes["batch"]
    return {"regime": regime_name(PHASES.get(row.lower("pass"), "attention"), quantity)}


def sparse_together(rows: Sequence[MeasuredRow]) -> list[dict[str, str]]:
    """Return of each row whether it is the ``fastest`` of its shape, and its time over that's."""
    names = [tuple(row.lower(column) for column in SHAPE) for row in rows]
    times = [row.number("ms") or np.inf for row in rows]
    least: dict[tuple[str, ...], float] = {}
    for name, time in zip(names, times, strict=True):
        least[name] = min(time, least.get(name, np.inf))
    return [
        {
            "fastest": "yes" if time == least[name] else "no",
            "of_fastest": f"{time / least[name]:.3g}" if np.isfinite(time) else "",
        }
        for name, time in zip(names, times, strict=True)
    ]


def shape(row: MeasuredRow) -> dict[str, float]:
    """Return the sizes of a row.

    Raises
    ------
    Skip
        Something is not stated.
    """
    ratio = row.number("compress_ratio")
    if ratio is None:
        raise Skip("shape not stated", "compress_ratio", scorable=False)
    selected = 0
    if ratio == 4:
        selected = row.whole("index_topk") or INDEX_TOP_K.get(row.lower("model"), 0)
        if not selected:
            raise Skip("shape not stated", "index_topk", scorable=False)
    length, width = float(stated(row, "seq")), float(row.whole("head_dim") or HEAD_DIM)
    decode = row.lower("pass") == "decode"
    return {
        "batch": float(stated(row, "mbs")),
        "query_length": 1.0 if decode else length,
        "key_length": length,
        "heads": float(stated(row, "heads")),
        "head_dim_qk": width,
        "head_dim_v": width,
        "selected": float(selected),
        "window": float(row.whole("window") or WINDOW),
        "compression": ratio,
    }


def sparse_case_of(row: MeasuredRow) -> Case:
    """Turn a row into what the model needs.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    if row.lower("pass") not in PASSES:
        raise Skip("unknown pass", row.lower("pass"))
    precision = row.lower("dtype") or "bf16"
    if precision not in ATTENTION_PRECISIONS:
        raise Skip("attention has no such precision", precision)
    hardware, notes = kernel_hardware(row)
    variant = SparseVariant(PASSES[row.lower("pass")], precision)
    return Case(hardware, variant, shape(row), measured_time(row, "ms", 1e-3), notes)


def sparse_price(hardware: Hardware, variant: SparseVariant, columns: Columns) -> Columns:
    """Price rows of one device and pass: ``time`` [s] and bound."""
    sizes: dict[str, Any] = dict(columns)
    found = sparse_attention_times(hardware, variant.precision, phase=variant.phase, **sizes)
    return {"time": found.time, "bound": np.array(ATTENTION_BOUNDS)[found.bound]}


SPARSE = KernelKind(
    name="sparse-attention",
    needed=("hardware", "pass", "heads", "seq", "mbs", "compress_ratio", "ms"),
    measurements=("ms",),
    group_by=("fastest", "pass", "compress_ratio", "backend"),
    whole=SPARSE_COUNTS,
    timed="ms",
    check=sparse_check,
    derived=sparse_derived,
    together=sparse_together,
    case_of=sparse_case_of,
    price=sparse_price,
    kernel_class="attention",
)
