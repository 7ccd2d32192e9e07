"""Number formats: their bytes, their scales, who uses which, and what tables call them.

Other tools' words for a format (PyTorch, hipBLASLt, AICB) map to these names; a size in
bytes stands nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class NumberFormat(NamedTuple):
    """How numbers are stored and at whose rate they multiply.

    Attributes
    ----------
    element_bytes : float
        One element, scales apart [B].
    rate : str
        Format whose matrix rate products run at, one of `MATRIX_RATES`.
    group : int
        Elements that share a stored scale; 0: scales are too few to count.
    scale_bytes : float
        One scale of a group [B].
    """

    element_bytes: float
    rate: str
    group: int = 0
    scale_bytes: float = 0.0

    @property
    def bytes(self) -> float:
        """One element with its part of the scale [B]."""
        return self.element_bytes + (self.scale_bytes / self.group if self.group else 0.0)


FORMATS: Mapping[str, NumberFormat] = {
    "bf16": NumberFormat(2.0, "bf16"),
    "fp16": NumberFormat(2.0, "fp16"),
    "fp8": NumberFormat(1.0, "fp8"),
    "fp8_block": NumberFormat(1.0, "fp8", 128, 4.0),  # DeepSeek-V3 (arXiv:2412.19437), 1 x 128
    "mxfp8": NumberFormat(1.0, "fp8", 32, 1.0),  # OCP Microscaling Formats 1.0
    "nvfp4": NumberFormat(0.5, "fp4", 16, 1.0),  # NVIDIA: an fp8 scale per 16 elements
    "mxfp4": NumberFormat(0.5, "fp4", 32, 1.0),  # OCP Microscaling Formats 1.0
    "int8": NumberFormat(1.0, "int8"),
    "tf32": NumberFormat(4.0, "tf32"),  # stored as fp32
    "fp32": NumberFormat(4.0, "fp32"),
    "fp64": NumberFormat(8.0, "fp64"),
}
"""Formats in which products are modelled, in the order in which help pages name them."""

OPERAND_BYTES: Mapping[str, float] = {name: item.bytes for name, item in FORMATS.items()}
"""One element of an operand, its part of the block scale included [B]."""

QUANTISED = tuple(name for name, item in FORMATS.items() if item.element_bytes < 2.0)
"""Formats into which 16-bit activations have to be cast."""

MATRIX_RATES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4", "int8")
"""Formats whose rate a hardware profile may state, in a profile's order."""

PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4")
"""Formats of a training strategy. Results store the position: it must not change."""

ATTENTION_PRECISIONS = ("bf16", "fp16", "fp8")
"""Formats of fused attention's operands, and of a key-value cache."""

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
