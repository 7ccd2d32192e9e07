"""Number formats: their bytes, their scales, who uses which, and what tables call them.

Other tools' words for a format (PyTorch, hipBLASLt, AICB) map to these names; a size in
bytes stands nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from perfmodel.base.errors import StrategyError


class CacheRule(NamedTuple):
    """What attention over a cache of keys and values in a format takes, beside its bytes.

    Attributes
    ----------
    products : str
        Format in which engines multiply over such a cache on devices that have its rate; "":
        16 bits.
    own_products : bool
        Kernels exist for those products alone, whatever a call or an engine asks for.
    conversion : float
        Vector operations to widen a cached key and value, per number of the value, beside what
        the device's kernels spend on 8-bit values [FLOP].
    instructions : str
        Class of matrix instructions that a device must have (``device.instruction_class``); "":
        any.
    engines : tuple of str
        Engines that have such a cache; empty: all.
    kinds : tuple of str
        Attention that has kernels for it, of `ATTENTION_KINDS`.
    source : str
        Why others are refused.
    """

    products: str = ""
    own_products: bool = False
    conversion: float = 0.0
    instructions: str = ""
    engines: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("grouped", "latent", "sparse", "backward")
    source: str = ""


ATTENTION_KINDS: Mapping[str, str] = {
    "grouped": "grouped-query attention",
    "latent": "latent attention (MLA)",
    "sparse": "sparse attention",
    "backward": "backward passes",
}
"""What a cache may be refused for -> its name in messages."""


class NumberFormat(NamedTuple):
    """How numbers are stored and at whose rate they multiply.

    Attributes
    ----------
    element_bytes : float
        One element, scales apart [B].
    rate : str
        Format whose matrix rate products run at, one of `MATRIX_RATES`; "": nothing multiplies in
        it, as in a format of caches alone.
    group : int
        Elements that share a stored scale; 0: scales are too few to count.
    scale_bytes : float
        One scale of a group [B].
    separate_cast : bool
        Serving engines cast to it in a kernel of its own: no kernel ahead finds the scales
        (``per_token_group_quant_fp8``, ``fp4_quantize``).
    attention : str, optional
        Constant of ``[calibration.attention]`` that scales the matrix rate of attention in this
        format, "" for none; None: fused attention has no rule for operands of this format.
    cache : CacheRule, optional
        Rule for caches of keys and values; None: there is none, and such a cache is refused.
    """

    element_bytes: float
    rate: str
    group: int = 0
    scale_bytes: float = 0.0
    separate_cast: bool = False
    attention: str | None = None
    cache: CacheRule | None = None

    @property
    def bytes(self) -> float:
        """One element with its part of the scale [B]."""
        return self.element_bytes + (self.scale_bytes / self.group if self.group else 0.0)


NVFP4_CACHE = CacheRule(
    products="fp8",
    own_products=True,
    conversion=2.0,
    instructions="tcgen05",
    engines=("vllm", "trtllm"),
    kinds=("grouped",),
    source="vLLM pull request 40177, FlashInfer issue 4644",
)
"""Keys and values in 4 bits (E2M1) with an fp8 scale (E4M3) per 16.

Kernels widen what they read to fp8 and multiply in fp8 (NVIDIA, "Optimizing inference for long
context and large batch sizes with NVFP4 KV cache", 2025-12-08). TensorRT-LLM has such caches
(features/quantization, "NVFP4 KV Cache"), and vLLM through TensorRT-LLM's generated kernels, for
prefill and decode, on data-centre Blackwell: pull request 40177, where a head takes
``d / 2 + d / 16`` bytes. Latent attention has none: vLLM refuses it, and FlashInfer's kernels take
no scales for it (flashinfer issue 4644). Kernels for other devices (sm120, sm80) were pull requests
in autumn 2026. What widening costs is not published. Prior: casts hide behind the loads, as those
of 4-bit weights do (Marlin, arXiv:2408.11743), and a packed multiplication by the scale is one
vector operation for each number of a key and of a value.
"""

FORMATS: Mapping[str, NumberFormat] = {
    "bf16": NumberFormat(2.0, "bf16", attention="", cache=CacheRule()),
    "fp16": NumberFormat(2.0, "fp16", attention="", cache=CacheRule()),
    "fp8": NumberFormat(1.0, "fp8", attention="fp8_matrix", cache=CacheRule(products="fp8")),
    # DeepSeek-V3 (arXiv:2412.19437): groups of 1 x 128
    "fp8_block": NumberFormat(1.0, "fp8", 128, 4.0, separate_cast=True),
    # OCP Microscaling Formats 1.0
    "mxfp8": NumberFormat(1.0, "fp8", 32, 1.0, separate_cast=True),
    # NVIDIA: an fp8 scale per 16 elements
    "nvfp4": NumberFormat(0.5, "fp4", 16, 1.0, separate_cast=True, cache=NVFP4_CACHE),
    "mxfp4": NumberFormat(0.5, "fp4", 32, 1.0),  # OCP Microscaling Formats 1.0
    "int8": NumberFormat(1.0, "int8", separate_cast=True),
    "tf32": NumberFormat(4.0, "tf32"),  # stored as fp32
    "fp32": NumberFormat(4.0, "fp32"),
    "fp64": NumberFormat(8.0, "fp64"),
    # Formats of caches alone: nothing multiplies in them.
}
"""Formats that are modelled, in the order in which help pages name them."""

OPERANDS = tuple(name for name, item in FORMATS.items() if item.rate)
"""Formats in which products are modelled."""

OPERAND_BYTES: Mapping[str, float] = {name: item.bytes for name, item in FORMATS.items()}
"""One element of an operand, its part of the block scale included [B]."""

QUANTISED = tuple(name for name in OPERANDS if FORMATS[name].element_bytes < 2.0)
"""Formats into which 16-bit activations have to be cast."""

MATRIX_RATES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4", "int8")
"""Formats whose rate a hardware profile may state, in a profile's order."""

PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4")
"""Formats of a training strategy. Results store the position: it must not change."""

ATTENTION_PRECISIONS = ("bf16", "fp16", "fp8")
"""Formats of fused attention's operands."""

CACHE_FORMATS = (
    *("bf16", "fp16", "fp8", "nvfp4"),
    # New formats go here: results store the position.
)
"""Formats of cached keys and values."""

WIDE_BYTES = 2.0
"""From so many bytes on, a cache is in 16 bits and as wide as the model's activations [B]."""

STREAM_PRECISIONS = ("bf16", "fp16", "fp32")
"""Formats of tensors that memory-bound operations stream."""

AS_STATED = "stated"
"""Weights and products as the model's ``quantization_config`` states them; bf16 without one."""

WEIGHT_FORMATS = (
    AS_STATED,
    *("bf16", "fp16", "fp8", "fp8_block", "mxfp8", "mxfp4", "nvfp4", "int8", "int4"),
)
"""Formats of the weights of a served model. Results store the position."""

ACTIVATION_FORMATS = (AS_STATED, "bf16", "fp16", "fp8", "mxfp8", "nvfp4")
"""Formats of its products. Results store the position."""

ALIASES: Mapping[str, str] = {
    "bfloat16": "bf16",  # PyTorch
    "float16": "fp16",
    "float32": "fp32",
    "bf16_r": "bf16",  # hipBLASLt
    "f16_r": "fp16",
    "f8_r": "fp8",
    "f32_r": "fp32",
    "fp8_rowwise": "fp8",  # one scale per row
    "fp8_cs": "fp8",  # Megatron Bridge: one scale per tensor, of the current values
    "fp8-cs": "fp8",
    "fp8_mx": "mxfp8",
    "bfloat16xbfloat16": "bf16",  # both operands of a product
    "int8xint8": "int8",
}
"""What tables and other tools call a format -> its name here."""


def format_name(text: str) -> str:
    """Return our name of a format that may be written otherwise; `text` where none is known."""
    return ALIASES.get(text, text)


def wide_format(precision: str) -> str:
    """Return the format of what a low-precision run leaves in 16 bits or more: bf16."""
    return "bf16" if precision in QUANTISED else precision


def rate_format(precision: str) -> str:
    """Return the format at whose matrix rate products of `precision` run."""
    return FORMATS[precision].rate if precision in FORMATS else precision


def attention_rule(precision: str) -> str:
    """Return which constant scales attention's matrix rate in a format; "" for none.

    Raises
    ------
    StrategyError
        The format has no rule.
    """
    found = FORMATS[precision].attention if precision in FORMATS else None
    if found is None:
        raise StrategyError(_without("attention in", precision, "attention"))
    return found


def cache_rule(precision: str) -> CacheRule:
    """Return the rule for the time of attention over a cache of a format.

    Raises
    ------
    StrategyError
        The format has no rule.

    Examples
    --------
    >>> cache_rule("nvfp4").products
    'fp8'
    """
    found = FORMATS[precision].cache if precision in FORMATS else None
    if found is None:
        raise StrategyError(_without("a cache in", precision, "cache"))
    return found


def _without(what: str, precision: str, field: str) -> str:
    return (
        f"{what} '{precision}' has no rule for its time; state one in "
        f"perfmodel/base/precisions.py, FORMATS['{precision}'].{field}"
    )
