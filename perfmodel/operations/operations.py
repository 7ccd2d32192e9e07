"""What a device does: matrix products, attention calls, streams, communications.

Every operation is written once for all layer keys: its sizes are columns with one
entry per key (or a number that holds for all), and ``count`` says how often the
operation runs per layer and micro-batch for that key, 0 for never.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Column
from perfmodel.base.precisions import OPERAND_BYTES, PRECISIONS, QUANTISED
from perfmodel.software.framework import Framework
from perfmodel.strategy.grid import RECOMPUTE

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
    """A collective; ``size`` [B] follows nccl-tests (see `perfmodel.network.collectives`).

    ``hidden_by`` names operations ``(name, phase)`` of the same layer that run at the
    same time where ``hides`` is 1; ``tail`` is the share that nothing can hide.
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


# Host work, in launches, when one parameter's gradient is ready: autograd accumulation and
# the hook with which data parallelism counts its bucket. An estimate, not a measurement.
GRADIENT_HOOK_LAUNCHES = 3.0

Operation = Gemm | Attention | Stream | Communication


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
    def tensor(self) -> Column:
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
        return self.number("context_stride") if "context_stride" in self.columns else self.tensor

    @property
    def sharded(self) -> Column:
        """1 where sequence parallelism shards the residual stream over t."""
        return self.number("sequence_parallel") * (self.tensor > 1)

    @property
    def tokens(self) -> Column:
        """Tokens of one micro-batch on one context rank."""
        return (
            self.number("micro_batch_size")
            * self.number("sequence_length")
            / self.number("context_parallel")
        )

    @property
    def stream_tokens(self) -> Column:
        """Tokens of the residual stream on one device (fewer with sequence parallelism)."""
        return np.where(self.sharded > 0, self.tokens / self.tensor, self.tokens)

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
)


class OperationList:
    """Collects the operations of one layer kind, with the habits that they share."""

    def __init__(self, keys: LayerKeys, framework: Framework, machine: Machine) -> None:
        self.keys = keys
        self.machine = machine
        self.framework = framework
        self.operations: list[Operation] = []
        self.role = Role.NONE
        self._recompute_full = keys.equals("recompute", RECOMPUTE.index("full"))
        self._recompute_selective = keys.equals("recompute", RECOMPUTE.index("selective"))

    @contextmanager
    def in_role(self, role: Role) -> Iterator[None]:
        """Give operations that are added inside the block this role."""
        former, self.role = self.role, role
        yield
        self.role = former

    def append(self, operation: Operation) -> None:
        """Append an operation in the present role."""
        self.operations.append(replace(operation, role=self.role))

    def add(self, operation: Operation, *, selective: bool = False) -> None:
        """Append an operation; a forward one is repeated where it is recomputed.

        Parameters
        ----------
        operation : Operation
        selective : bool
            The operation is among those that selective recomputation repeats.
        """
        self.append(operation)
        if operation.phase != "forward":
            return
        again = self._recompute_full + (self._recompute_selective if selective else 0.0)
        if np.any(again > 0):
            changes: dict[str, Any] = {"phase": "recompute", "count": operation.count * again}
            if isinstance(operation, Communication):
                changes["hidden_by"] = tuple((name, "recompute") for name, _ in operation.hidden_by)
            self.append(replace(operation, **changes))

    def stream(
        self,
        name: str,
        elements: Size,
        forward: tuple[float, float],
        backward: tuple[float, float],
        *,
        flops: float = 0.0,
        launches: Size = 1.0,
        count: Size = 1.0,
        selective: bool = False,
    ) -> None:
        """Add a stream and its gradient; (read, written) bytes are per element."""
        for phase, (read, written) in (("forward", forward), ("backward_input", backward)):
            if read + written > 0:
                self.add(
                    Stream(
                        name,
                        phase,
                        elements * read,
                        elements * written,
                        elements * flops,
                        launches,
                        count,
                    ),
                    selective=selective,
                )

    def linear(
        self,
        name: str,
        tokens: Size,
        inputs: Size,
        outputs: Size,
        *,
        batch: Size = 1.0,
        quantised: bool = True,
        selective: bool = False,
        launches: Size = 1.0,
        count: Size = 1.0,
        output_bytes: float = 2.0,
    ) -> None:
        """Add a linear layer: forward, data gradient, weight gradient and its casts.

        Parameters
        ----------
        name : str
        tokens, inputs, outputs : float or ndarray
            Rows, input and output features on this device (per expert with `batch`).
        batch : float or ndarray
            Experts of a grouped product.
        """
        shared: dict[str, Any] = {
            "batch": batch,
            "quantised": quantised,
            "launches": launches,
            "count": count,
        }
        forward = Gemm(
            name, "forward", tokens, outputs, inputs, output_bytes=output_bytes, **shared
        )
        self.add(forward, selective=selective)
        self.add(Gemm(name, "backward_input", tokens, inputs, outputs, **shared))
        # The weight gradient is added to the fp32 (or bf16) main gradient in place.
        self.add(
            Gemm(
                name,
                "backward_weight",
                outputs,
                inputs,
                tokens,
                output_bytes=self.framework.gradient_bytes,
                accumulate=True,
                **{**shared, "launches": launches + GRADIENT_HOOK_LAUNCHES},
            )
        )
        if quantised and np.any(self.keys.low_precision > 0):
            self._casts(name, tokens * batch * count, inputs, outputs, count, selective)

    def _casts(
        self,
        name: str,
        rows: Size,
        inputs: Size,
        outputs: Size,
        launches: Size,
        selective: bool,
    ) -> None:
        """Cast a product's input (forward) and its output gradient (backward)."""
        active = self.keys.low_precision
        # Current scaling reads the tensor once more, for its maximum.
        current = self.framework.scaling == "current"
        read = 2.0 + 2.0 * current * self.keys.equals("precision", PRECISIONS.index("fp8"))
        written = self.keys.by_precision(self.machine.cast_bytes(), 0.0)
        for phase, width in (("forward", inputs), ("backward_input", outputs)):
            elements = rows * width
            self.add(
                Stream(
                    f"{name}.cast",
                    phase,
                    elements * read,
                    elements * written,
                    launches=launches,
                    count=active,
                ),
                selective=selective,
            )

    def enter_tensor_parallel(self, name: str, width: float, product: str) -> None:
        """Add the communication ahead of a column-parallel product.

        Sequence parallelism gathers the sharded input (again in backward, where the
        gather hides behind the data gradient) and reduce-scatters its gradient;
        without it the gradient is all-reduced. Both hide behind the weight gradient
        (Korthikanti et al. 2022, section 4.2; Megatron-LM
        ``LinearWithGradAccumulationAndAsyncCommunication``).
        """
        sharded, parallel = self.keys.sharded, (self.keys.tensor > 1).astype(np.float64)
        plain = parallel * (1 - sharded)
        self._tensor(f"{name}.all_gather", "forward", "all_gather", width, sharded, product, "full")
        self._tensor(
            f"{name}.all_gather",
            "backward_input",
            "all_gather",
            width,
            sharded,
            product,
            "backward",
        )
        self._tensor(
            f"{name}.reduce_scatter",
            "backward_weight",
            "reduce_scatter",
            width,
            sharded,
            product,
            "backward",
        )
        self._tensor(
            f"{name}.all_reduce",
            "backward_weight",
            "all_reduce",
            width,
            plain,
            product,
            "backward",
        )

    def leave_tensor_parallel(self, name: str, width: float, product: str) -> None:
        """Add the communication after a row-parallel product."""
        sharded, parallel = self.keys.sharded, (self.keys.tensor > 1).astype(np.float64)
        plain = parallel * (1 - sharded)
        self._tensor(
            f"{name}.reduce_scatter", "forward", "reduce_scatter", width, sharded, product, "full"
        )
        self._tensor(f"{name}.all_reduce", "forward", "all_reduce", width, plain, product, "never")
        self._tensor(
            f"{name}.all_gather", "backward_input", "all_gather", width, sharded, product, "full"
        )

    def _tensor(
        self,
        name: str,
        phase: str,
        collective: str,
        width: float,
        count: Column,
        product: str,
        needs: str,
    ) -> None:
        """Add one tensor-parallel collective of the tokens' hidden states (2 bytes each).

        `needs` is the least overlap setting that hides it. Where "full" overlap
        pipelines it with its own product, the first of t pieces has nothing beside it.
        """
        if not np.any(count > 0):
            return
        levels = ("none", "backward", "full", "never")
        setting = levels.index(self.framework.overlap_tensor_parallel)
        self.add(
            Communication(
                name,
                phase,
                "tensor",
                collective,
                self.keys.tokens * width * 2.0,
                self.keys.tensor,
                self.keys.tensor_stride,
                hidden_by=((product, phase),),
                hides=1.0 if setting >= levels.index(needs) else 0.0,
                tail=1.0 / self.keys.tensor if needs == "full" else 0.0,
                count=count,
            )
        )
