"""Mixers with a state instead of a cache: linear attention, state spaces, convolutions.

Shape letters: h hidden size, n heads of values, m heads of keys, k and v length of a key and
of a value, K taps of the convolution.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.model.pieces import (
    Piece,
    Pieces,
    check_choice,
    check_flag,
    check_multiple,
    check_pieces,
    check_size,
    matrix,
    vector,
)

RECURRENCE_KINDS = ("gated_delta", "kimi_delta", "mamba2", "mamba1", "lightning")


@dataclass(frozen=True, slots=True)
class RecurrenceSpec:
    """A mixer that carries a state of ``heads x key_dim x value_dim`` from token to token.

    Attributes
    ----------
    kind : {"gated_delta", "kimi_delta", "mamba2", "mamba1", "lightning"}
        Gated DeltaNet (arXiv:2412.06464), Kimi Delta Attention (arXiv:2510.26692), the
        state-space dual of Mamba-2 (arXiv:2405.21060), the selective scan of Mamba-1
        (arXiv:2312.00752), or linear attention with a fixed decay (Lightning Attention,
        arXiv:2401.04658).
    heads : int
        Heads of the state; channels of "mamba1".
    key_heads : int
        Heads of queries and keys (groups of B and C in Mamba-2), which heads share.
    key_dim, value_dim : int
        Length of a key (the state size N of Mamba) and of a value (the head's P of Mamba-2;
        1 in Mamba-1).
    conv_kernel : int
        Taps of the causal convolution ahead of the recurrence; 0 for none.
    chunk : int
        Tokens that the kernels handle at once; a choice of the kernels, not of the model.
    conv_bias, bias : bool
        Biases of the convolution, and of the projections in and out.
    time_step_rank : int
        Rank R of Mamba-1's time step; 0 otherwise.
    gate_rank : int
        Rank of the output gate's projection in "kimi_delta"; 0 for a full one.
    full_forget_gate : bool
        The forget gate of "kimi_delta" is one full projection, not one of rank `value_dim`.
    output_norm : bool
        What comes out is normalised, ahead of or behind its gate.
    inner_norms : bool
        Time step, B and C of Mamba-1 are normalised with weights (Jamba).
    extra : tuple of Piece
        What else stands in the mixer.
    state_bytes : int
        A number of the state as the model's file asks for it [B]; 0 where it says nothing.
    """

    kind: str
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int = 0
    chunk: int = 64
    conv_bias: bool = False
    bias: bool = False
    time_step_rank: int = 0
    gate_rank: int = 0
    full_forget_gate: bool = False
    output_norm: bool = True
    inner_norms: bool = False
    extra: Pieces = ()
    state_bytes: int = 0

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, RECURRENCE_KINDS)
        for key in ("heads", "key_heads", "key_dim", "value_dim", "chunk"):
            check_size(key, getattr(self, key))
        for key in ("conv_kernel", "time_step_rank", "gate_rank", "state_bytes"):
            check_size(key, getattr(self, key), minimum=0)
        for key in ("conv_bias", "bias", "output_norm", "inner_norms", "full_forget_gate"):
            check_flag(key, getattr(self, key))
        check_multiple("heads", self.heads, "key_heads", self.key_heads)
        if self.kind == "mamba1":
            check_size("time_step_rank", self.time_step_rank)
        check_pieces("extra", self.extra)

    @property
    def inner_size(self) -> int:
        """Numbers per token that come out of the recurrence."""
        return self.heads * self.value_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution; 0 without one."""
        if not self.conv_kernel:
            return 0
        if self.kind == "mamba1":
            return self.heads
        return 2 * self.key_heads * self.key_dim + self.inner_size

    def pieces(self, hidden_size: int) -> Pieces:
        """Return the pieces of the mixer."""
        build = {
            "gated_delta": self._gated_delta,
            "kimi_delta": self._kimi_delta,
            "mamba2": self._mamba2,
            "mamba1": self._mamba1,
            "lightning": self._lightning,
        }[self.kind]
        found = [*build(hidden_size)]
        if self.conv_channels:
            channels, taps = self.conv_channels, self.conv_kernel
            found.append(
                Piece("convolution", "convolution", taps, channels, self.conv_bias, "columns")
            )
        found.append(matrix("output", self.inner_size, hidden_size, "rows", self.bias))
        return (*found, *self.extra)

    def _norm(self, size: int) -> Pieces:
        return (vector("norm", size),) if self.output_norm else ()

    def _gated_delta(self, h: int) -> Pieces:
        """Queries, keys, values and gate; decay and step of every head (Qwen3-Next)."""
        n = self.heads
        inner = 2 * self.key_heads * self.key_dim + 2 * self.inner_size
        return (
            matrix("input", h, inner, "columns", self.bias),
            matrix("decay_step", h, 2 * n, "columns", self.bias),
            vector("decay", 2 * n, "columns"),
            *self._norm(self.value_dim),
        )

    def _kimi_delta(self, h: int) -> Pieces:
        """As the gated delta rule with a decay per channel, often by way of a low rank."""
        n, inner, d = self.heads, self.inner_size, self.key_dim
        keys = self.key_heads * d
        rank = self.gate_rank
        gate: Pieces = (matrix("gate", h, inner, "columns"),)
        if rank:
            gate = (
                matrix("gate_down", h, rank, "whole"),
                matrix("gate_up", rank, inner, "columns"),
            )
        forget: Pieces = (matrix("forget", h, keys, "columns"),)
        if not self.full_forget_gate:
            forget = (
                matrix("forget_down", h, self.value_dim, "whole"),
                matrix("forget_up", self.value_dim, keys, "columns"),
            )
        return (
            matrix("input", h, 2 * keys + inner, "columns", self.bias),
            *forget,
            *gate,
            matrix("step", h, n, "columns"),
            vector("decay", keys + n, "columns"),
            *self._norm(self.value_dim),
        )

    def _mamba2(self, h: int) -> Pieces:
        """Gate, input, B, C and time step in one projection; A, D and its bias per head."""
        inner, n = self.inner_size, self.heads
        width = 2 * inner + 2 * self.key_heads * self.key_dim + n
        return (
            matrix("input", h, width, "columns", self.bias),
            vector("decay", 3 * n, "columns"),
            *self._norm(inner),
        )

    def _mamba1(self, h: int) -> Pieces:
        """Input and gate; time step, B and C from the convolved input; A and D per channel."""
        inner, rank, state = self.heads, self.time_step_rank, self.key_dim
        norms = (vector("inner_norms", rank + 2 * state),) if self.inner_norms else ()
        return (
            matrix("input", h, 2 * inner, "columns", self.bias),
            matrix("time_step_b_c", inner, rank + 2 * state, "rows"),
            matrix("time_step", rank, inner, "columns", True),
            vector("decay", inner * state + inner, "columns"),
            *norms,
        )

    def _lightning(self, h: int) -> Pieces:
        """Queries, keys, values, and the gate of the output (MiniMax-01)."""
        inner = self.inner_size
        width = 2 * self.key_heads * self.key_dim + inner
        return (
            matrix("input", h, width, "columns", self.bias),
            matrix("gate", h, inner, "columns", self.bias),
            *self._norm(inner),
        )


@dataclass(frozen=True, slots=True)
class ShortConvolutionSpec:
    """A gated causal convolution over a few tokens (LFM2): h -> 3 c, convolution, c -> h.

    Attributes
    ----------
    channels : int
        Width c of the convolution.
    kernel : int
        Taps.
    bias : bool
        Biases on projections and convolution.
    extra : tuple of Piece
    """

    channels: int
    kernel: int
    bias: bool = False
    extra: Pieces = ()

    def __post_init__(self) -> None:
        check_size("channels", self.channels)
        check_size("kernel", self.kernel)
        check_flag("bias", self.bias)
        check_pieces("extra", self.extra)

    def pieces(self, hidden_size: int) -> Pieces:
        """Return projections and convolution."""
        c = self.channels
        return (
            matrix("input", hidden_size, 3 * c, "columns", self.bias),
            Piece("convolution", "convolution", self.kernel, c, self.bias, "columns"),
            matrix("output", c, hidden_size, "rows", self.bias),
            *self.extra,
        )
