"""What a device does: matrix products, attention, recurrences, streams, communications.

Every operation is written once for all layer keys: its sizes are columns with one
entry per key (or a number that holds for all), and ``count`` says how often the
operation runs per layer and micro-batch for that key, 0 for never.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Column
from perfmodel.base.precisions import OPERAND_BYTES, PRECISIONS, QUANTISED

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

Size = Column | float

PHASES = ("forward", "backward_input", "backward_weight", "recompute", "optimizer")
AXES = ("tensor", "context", "expert", "pipeline", "data")


class Role(StrEnum):
    """What an operation is to its model, whatever its name says."""

    NONE = "none"
    """In no model: a kernel by itself."""
    ATTENTION = "attention"
    """Attention and what leads to it: norm, projections, rotary embedding."""
    ATTENTION_OUTPUT = "attention output"
    """What leads from attention: projection, norm, residual addition."""
    RECURRENCE = "recurrence"
    """As `ATTENTION`, of a mixer with a state or a short convolution."""
    RECURRENCE_OUTPUT = "recurrence output"
    """As `ATTENTION_OUTPUT`, of the same."""
    MLP = "mlp"
    """First product and activation of a feed-forward block, and what leads to them."""
    MLP_OUTPUT = "mlp output"
    """Its second product and what leads from it."""
    SHARED = "shared"
    """As `MLP`, of the experts that every token meets."""
    SHARED_OUTPUT = "shared output"
    """As `MLP_OUTPUT`, of the same."""
    EXPERTS = "experts"
    """Of a block with routed experts all but what follows here."""
    EXPERT_PRODUCT = "expert product"
    """Products of routed experts, with their casts."""
    EXPERT_SHARING = "expert sharing"
    """Exchange among the devices that hold one expert together."""
    EMBEDDING = "embedding"
    """Token embedding."""
    OUTPUT = "output"
    """Final norm and logits."""
    LOSS = "loss"
    """Loss of the logits."""
    PREDICTION = "prediction"
    """Norms and projection of a multi-token-prediction module."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """``batch`` products C[m, n] (+)= A[m, k] B[k, n]; low precision where ``quantised``."""

    name: str
    phase: str
    m: Size
    n: Size
    k: Size
    batch: Size = 1.0
    quantised: bool = True
    output_bytes: float = 2.0
    accumulate: bool = False
    launches: Size = 1.0
    count: Size = 1.0
    role: Role = Role.NONE


@dataclass(frozen=True, slots=True)
class Attention:
    """One fused attention call; lengths in tokens, ``heads`` on this device."""

    name: str
    phase: str
    batch: Size
    query_length: Size
    key_length: Size
    heads: Size
    key_value_heads: Size
    head_dim_qk: float
    head_dim_v: float
    causal: bool
    window: Size = 0.0
    backward: bool = False
    count: Size = 1.0
    role: Role = Role.NONE


@dataclass(frozen=True, slots=True)
class SparseAttention:
    """One call of attention over the keys in a window and chosen or compressed ones.

    Queries are aligned to the end of the keys; see
    `perfmodel.compute.sparse_attention.sparse_attention_times`.
    """

    name: str
    phase: str
    batch: Size
    query_length: Size
    key_length: Size
    heads: Size
    key_value_heads: Size
    head_dim_qk: float
    head_dim_v: float
    selected: float = 0.0
    window: float = 0.0
    compression: float = 1.0
    block: float = 1.0
    shared_key_value: bool = True
    backward: bool = False
    count: Size = 1.0
    role: Role = Role.NONE


@dataclass(frozen=True, slots=True)
class Indexer:
    """Scores of all keys and the choice of the best, or the gradient of chosen scores."""

    name: str
    phase: str
    batch: Size
    query_length: Size
    key_length: Size
    heads: float
    head_dim: float
    top_k: float
    compression: float = 1.0
    block: float = 1.0
    backward: bool = False
    count: Size = 1.0
    role: Role = Role.NONE


@dataclass(frozen=True, slots=True)
class Recurrence:
    """One call of a recurrence's chain of kernels; ``heads`` on this device.

    `launches` are those kernels, to the host.
    """

    name: str
    phase: str
    kind: str
    batch: Size
    length: Size
    heads: Size
    key_heads: Size
    key_dim: float
    value_dim: float
    chunk: float
    backward: bool = False
    launches: Size = 1.0
    count: Size = 1.0
    role: Role = Role.NONE


@dataclass(frozen=True, slots=True)
class Stream:
    """A memory-bound operation [B read, B written, FLOP on the general cores]."""

    name: str
    phase: str
    bytes_read: Size
    bytes_written: Size
    flops: Size = 0.0
    launches: Size = 1.0
    count: Size = 1.0
    role: Role = Role.NONE


@dataclass(frozen=True, slots=True)
class Communication:
    """A collective; ``size`` [B] follows nccl-tests (see `perfmodel.compute.collectives`).

    ``hidden_by`` names operations ``(name, phase)`` of the same layer, or ``mlp.*`` and
    ``mixer.*``, that run at the same time where ``hides`` is 1; ``tail`` is the share that
    nothing can hide.
    """

    name: str
    phase: str
    axis: str
    collective: str
    size: Size
    members: Size
    stride: Size
    hidden_by: tuple[tuple[str, str], ...] = ()
    hides: Size = 0.0
    tail: Size = 0.0
    count: Size = 1.0
    role: Role = Role.NONE
    algorithm: str = "auto"  # of `perfmodel.compute.collectives.ALGORITHMS`


@dataclass(frozen=True, slots=True)
class TokenExchange(Communication):
    """A dispatch or combine by DeepEP's kernels (`perfmodel.compute.expert_exchange`).

    ``size`` is what an all-to-all of the same copies would send.
    """

    kind: str = "dispatch"  # or "combine"
    tokens: Size = 0.0  # of a rank
    token_bytes: float = 0.0
    top_k: float = 1.0
    experts: float = 1.0
    share: float = 1.0  # of the groups of experts, among which a token chooses
    groups: float = 0.0  # of experts; 0: one per node
    units: float = 20.0  # compute units that copy


Operation = Gemm | Attention | SparseAttention | Indexer | Recurrence | Stream | Communication


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts about a device that decide which operations run, not how fast.

    Attributes
    ----------
    domain : int
        Devices that one scale-up network joins; decides who shares dispatched tokens.
    sizes : tuple of int
        Sizes of the network levels, innermost first; 0: unbounded.
    fp8_transposed_copies : bool
        Per-tensor fp8 products need transposed operands for gradients.
    """

    domain: int = 8
    fp8_transposed_copies: bool = True
    sizes: tuple[int, ...] = (8, 0)

    def copies(self) -> dict[str, float]:
        """Row-wise and column-wise copies that a cast writes, by precision.

        Block scales run along the reduction, so block-scaled formats always need both.
        """
        return {"fp8": 1.0 + self.fp8_transposed_copies, "mxfp8": 2.0, "nvfp4": 2.0}

    def cast_bytes(self) -> dict[str, float]:
        """Bytes written per cast element, all copies, by precision [B]."""
        return {name: copies * OPERAND_BYTES[name] for name, copies in self.copies().items()}


def machine_of(hardware: Hardware) -> Machine:
    """Facts of a profile that decide which operations run."""
    return Machine(
        domain=hardware.system.network[0].size or hardware.system.devices_per_node,
        fp8_transposed_copies=hardware.device.fp8_transposed_copies,
        sizes=tuple(level.size for level in hardware.system.network),
    )


@dataclass(frozen=True)
class LayerKeys:
    """The strategy fields on which the operations of a layer depend, as columns.

    Attributes
    ----------
    columns : dict of str to ndarray, shape (keys,)
        Integer columns of the fields in `LAYER_KEY_FIELDS`, and of `LAYER_PLACEMENT`
        (`perfmodel.strategy.mapping`) where the axes are not in the default order.
    """

    columns: dict[str, NDArray[np.int64]]

    def __len__(self) -> int:
        return int(self.columns["tensor_parallel"].size)

    def number(self, name: str) -> Column:
        """Return a field as floating-point numbers, shape (keys,)."""
        return self.columns[name].astype(np.float64)

    def equals(self, name: str, code: int) -> Column:
        """Return 1.0 where a field has a code, else 0.0, shape (keys,)."""
        return (self.columns[name] == code).astype(np.float64)

    @property
    def tensor_parallel(self) -> Column:
        """Tensor-parallel degree t."""
        return self.number("tensor_parallel")

    @property
    def tensor_stride(self) -> Column:
        """Distance of neighbouring tensor ranks, in devices."""
        if "tensor_stride" in self.columns:
            return self.number("tensor_stride")
        return np.ones(len(self))

    @property
    def context_stride(self) -> Column:
        """Distance of neighbouring context ranks, in devices."""
        return (
            self.number("context_stride")
            if "context_stride" in self.columns
            else self.tensor_parallel
        )

    @property
    def sharded(self) -> Column:
        """1 where sequence parallelism shards the residual stream over t."""
        return self.number("sequence_parallel") * (self.tensor_parallel > 1)

    @property
    def tokens(self) -> Column:
        """Tokens of one micro-batch on one context rank."""
        return (
            self.number("micro_batch_size")
            * self.number("sequence_length")
            / self.number("context_parallel")
        )

    @property
    def document(self) -> Column:
        """Tokens of a sequence that attend to each other: of a packed document, or all."""
        length = self.number("sequence_length")
        if "document_length" not in self.columns:
            return length
        document = self.number("document_length")
        return np.where(document > 0, document, length)

    @property
    def stream_tokens(self) -> Column:
        """Tokens of the residual stream on one device (fewer with sequence parallelism)."""
        return np.where(self.sharded > 0, self.tokens / self.tensor_parallel, self.tokens)

    @property
    def low_precision(self) -> Column:
        """1 where matrix products run in fp8 or below."""
        return self.by_precision(dict.fromkeys(QUANTISED, 1.0), 0.0)

    def by_precision(self, table: dict[str, float], otherwise: float) -> Column:
        """Return ``table[precision]`` for each key, shape (keys,)."""
        values = np.array([table.get(name, otherwise) for name in PRECISIONS])
        return values[self.columns["precision"]]


LAYER_KEY_FIELDS = (
    "tensor_parallel",
    "sequence_parallel",
    "context_parallel",
    "context_parallel_kind",
    "expert_parallel",
    "expert_tensor_parallel",
    "micro_batch_size",
    "sequence_length",
    "recompute",
    "precision",
    "document_length",
)
