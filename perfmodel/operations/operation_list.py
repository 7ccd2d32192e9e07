"""Lists of operations in the making, with the habits that all blocks of a layer share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from perfmodel.base.columns import Column
from perfmodel.base.precisions import OPERAND_BYTES, PRECISIONS
from perfmodel.base.strategy_fields import RECOMPUTE
from perfmodel.model.pieces import Pieces
from perfmodel.operations.operations import (
    Attention,
    Communication,
    Gemm,
    LayerKeys,
    Machine,
    Operation,
    Role,
    Size,
    SparseAttention,
    Stream,
)
from perfmodel.software.framework import Framework
from perfmodel.software.modules import policy_of

# Host work, in launches, when one parameter's gradient is ready: autograd accumulation and
# the hook with which data parallelism counts its bucket. An estimate, not a measurement.
GRADIENT_HOOK_LAUNCHES = 3.0
# Host work, in launches, of a norm or a rotation that is composed of operators: 8 to 14 of them
# where a launch stands for the operators around a kernel, too (`operators_per_kernel`, 3).
COMPOSED_LAUNCHES = 3.0

SCALING = {"delayed": (0.0, 0.0), "current": (2.0, 0.0), "rows": (5.0, 1.0)}
"""Scaling of fp8 -> bytes per element that a cast reads and writes beyond 2 and its copies.

Current scaling reads the tensor once more, for its maximum. Scales of rows and of columns take a
cast each: that of rows finds a row's maximum on the way, that of columns reads all twice, and its
result is turned, a pass over 8-bit elements (torchao, float8_linear.py and float8_ops.py).
"""

FILL = ".fill"


def allocated_bytes(operation: Operation) -> Size:
    """Return what an operation writes to memory that is allocated for it [B].

    Gradients of weights that are added in place allocate nothing; buffers of communication stay.
    """
    if isinstance(operation, Gemm):
        made = operation.m * operation.n * operation.batch * operation.output_bytes
        return 0.0 if operation.accumulate else made
    if isinstance(operation, Attention):
        queries = operation.query_length * operation.heads
        keys = operation.key_length * operation.key_value_heads
        widths = operation.head_dim_qk, operation.head_dim_v
        gradients = queries * widths[0] + keys * sum(widths)
        return 2.0 * operation.batch * (gradients if operation.backward else queries * widths[1])
    if isinstance(operation, Stream) and operation.phase != "backward_weight":
        return operation.bytes_written
    return 0.0


class OperationList:
    """Collects the operations of one layer kind, with the habits that they share."""

    def __init__(
        self,
        keys: LayerKeys,
        framework: Framework,
        machine: Machine,
    ) -> None:
        self.keys = keys
        self.machine = machine
        self.framework = framework
        self.operations: list[Operation] = []
        self.role = Role.NONE
        self.modules: tuple[str, ...] = ()  # that selective recomputation may repeat
        self.normed_behind = False  # a norm reads what the last product puts out
        self._policy = policy_of(framework.selective_recompute, framework.flash_attention)
        self.frozen = False  # weights of what is added have no gradient
        # (product, phase) of casts whose tensor is gathered over the tensor ranks afterwards.
        self._cast_ahead_of_gather: set[tuple[str, str]] = set()
        self._products = 0  # so far, of those of which selective recomputation takes every second
        self._recompute_full = keys.equals("recompute", RECOMPUTE.index("full"))
        self._recompute_selective = keys.equals("recompute", RECOMPUTE.index("selective"))

    @contextmanager
    def in_role(self, role: Role) -> Iterator[None]:
        """Give operations that are added inside the block this role."""
        former, self.role = self.role, role
        yield
        self.role = former

    @contextmanager
    def in_module(self, *names: str) -> Iterator[None]:
        """Have operations that are added inside the block repeated where these modules are."""
        former, self.modules = self.modules, (*self.modules, *names)
        yield
        self.modules = former

    @contextmanager
    def trained(self) -> Iterator[None]:
        """Give products that are added inside the block gradients of their weights."""
        former, self.frozen = self.frozen, False
        yield
        self.frozen = former

    def append(self, operation: Operation) -> None:
        """Append an operation in the present role, behind what fills its result's memory."""
        operation = replace(operation, role=self.role)
        if self.framework.fills_allocations and np.any(made := allocated_bytes(operation)):
            fill = f"{operation.name}{FILL}"
            again: Any = {"count": operation.count, "role": self.role}
            self.operations.append(Stream(fill, operation.phase, 0.0, made, **again))
        self.operations.append(operation)

    def add(self, operation: Operation, *, module: str = "", alternate: Size = 1.0) -> None:
        """Append an operation; a forward one is repeated where it is recomputed.

        Parameters
        ----------
        operation : Operation
        module : str
            The smallest one to which it belongs (`perfmodel.software.modules.MODULES`).
        alternate : float or ndarray
            Share of it that is repeated where every second product is.
        """
        self.append(operation)
        if operation.phase != "forward":
            return
        share = self._repeated(operation, module, alternate)
        again = self._recompute_full + self._recompute_selective * share
        if np.any(again > 0):
            changes: dict[str, Any] = {"phase": "recompute", "count": operation.count * again}
            if isinstance(operation, Communication):
                changes["hidden_by"] = tuple((name, "recompute") for name, _ in operation.hidden_by)
            self.append(replace(operation, **changes))

    def _repeated(self, operation: Operation, module: str, alternate: Size) -> Size:
        """Return the share of a forward operation that selective recomputation repeats."""
        core = isinstance(operation, Attention | SparseAttention)
        if self._policy.repeats((*self.modules, "core_attn" if core else module)):
            return 1.0
        if self._policy.saved:
            return float(not self._saved(operation))
        if not self._policy.alternate:
            return 0.0
        if isinstance(operation, Communication):
            return float(operation.collective not in ("reduce_scatter", "all_to_all"))
        return 0.0 if core else alternate

    def _saved(self, operation: Operation) -> bool:
        """Tell whether an operation makes an output that is saved, or one that nobody reads.

        What is behind the last product of a layer only leads to the next layer's input, which is
        kept: remaking it is dead code (jax.checkpoint leaves it out, ``dce_jaxpr``), unless a norm
        stands between, or experts' outputs wait to be weighted.
        """
        made = operation.name
        if isinstance(operation, Communication):
            made = made.rpartition(".")[0]  # a sum over ranks is named after its product
        if not self.normed_behind and made in ("mlp.down", "mlp.output", "mlp.residual"):
            return True
        return self._policy.saves(made)

    def _every_second(self, widths: Sequence[Size]) -> Size:
        """Return the share of matrices side by side that have even numbers in their layer."""
        first, self._products = self._products, self._products + len(widths)
        even = [width for number, width in enumerate(widths, first + 1) if number % 2 == 0]
        return sum(even) / sum(widths)

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
        module: str = "",
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
                    module=module,
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
        module: str = "",
        launches: Size = 1.0,
        count: Size = 1.0,
        output_bytes: float = 2.0,
        matrices: Sequence[Size] = (),
        sides: int = 1,
        rows: Size | None = None,
    ) -> None:
        """Add a linear layer: forward, data gradient, weight gradient and its casts.

        Frozen ones have no weight gradient, but perhaps an adapter.

        Parameters
        ----------
        name : str
        tokens, inputs, outputs : float or ndarray
            Rows, input and output features on this device (per expert with `batch`).
        batch : float or ndarray
            Experts of a grouped product.
        matrices : sequence of float or ndarray
            Output features of the matrices that stand in it side by side, where it is of several.
        sides : int
            How many equal ones there are, where `matrices` does not say.
        rows : float or ndarray, optional
            Of all experts of a grouped product, where tiles on their borders are computed twice.
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
        # Only plain 16-bit products are counted; grouped and 8-bit ones are all repeated.
        alternate: Size = 1.0
        if np.all(np.asarray(batch) == 1.0):
            alternate = self._every_second(matrices or (outputs,))
            alternate = np.where(self.keys.low_precision * quantised > 0, 1.0, alternate)
        self.add(forward, module=module, alternate=alternate)
        self.add(Gemm(name, "backward_input", tokens, inputs, outputs, **shared))
        if self.frozen:
            widths = matrices or (outputs / sides,) * sides
            rows = tokens * batch if rows is None else rows
            self.beside_frozen(name, tokens, inputs, outputs, widths, batch, count, rows)
        else:
            self._weight_gradient(name, tokens, inputs, outputs, shared)
        if quantised and np.any(self.keys.low_precision > 0):
            self._casts(name, tokens * batch * count, inputs, outputs, count, module)

    def beside_frozen(
        self,
        product: str,
        tokens: Size,
        inputs: Size,
        outputs: Size,
        widths: Sequence[Size],
        batch: Size,
        count: Size,
        rows: Size,
    ) -> None:
        """Add what stands beside a frozen product: nothing, but for adapters."""

    def _weight_gradient(
        self, name: str, tokens: Size, inputs: Size, outputs: Size, shared: Mapping[str, Any]
    ) -> None:
        """Add the gradient of a product's weights, and what adds it up."""
        batch, count = shared["batch"], shared["count"]
        # The weight gradient is added to the fp32 (or bf16) main gradient in place, or written
        # in 16 bits and added by a kernel of its own.
        accumulation = self.framework.gradient_accumulation
        fused = accumulation == "fused"
        self.add(
            Gemm(
                name,
                "backward_weight",
                outputs,
                inputs,
                tokens,
                output_bytes=self.framework.gradient_bytes if fused else 2.0,
                accumulate=fused,
                **{**shared, "launches": shared["launches"] + GRADIENT_HOOK_LAUNCHES},
            )
        )
        if not fused:
            main = 2.0 if accumulation == "autograd" else self.framework.gradient_bytes
            gradients = inputs * outputs * batch
            self.add(
                Stream(
                    f"{name}.gradient",
                    "backward_weight",
                    gradients * (2.0 + main),
                    gradients * main,
                    gradients,
                    count=count,
                )
            )

    def _casts(
        self,
        name: str,
        rows: Size,
        inputs: Size,
        outputs: Size,
        launches: Size,
        module: str,
    ) -> None:
        """Cast a product's input (forward) and its output gradient (backward)."""
        active = self.keys.low_precision
        for phase, width in (("forward", inputs), ("backward_input", outputs)):
            gathered = (name, phase) in self._cast_ahead_of_gather
            read, written = self._cast_traffic(rows * width, gathered)
            self.add(
                Stream(f"{name}.cast", phase, read, written, launches=launches, count=active),
                module=module,
            )

    def _cast_traffic(self, elements: Size, gathered: bool) -> tuple[Column, Column]:
        """Return the bytes that the cast of a tensor reads and writes.

        Ahead of a gather of quantised operands a rank casts its own share. Where fp8 products take
        one operand order (Hopper), the column-wise copy is made from the gathered rows; those of
        block-scaled formats are made with the cast. Beside frozen weights none needs a second copy,
        which is the weight gradient's.
        """
        is_fp8 = self.keys.equals("precision", PRECISIONS.index("fp8"))
        further_read, further_written = SCALING[self.framework.scaling]
        if self.frozen and self.framework.scaling == "rows":
            further_read = further_written = 0.0  # scales of columns are the weight gradient's
        read = 2.0 + further_read * is_fp8
        copies = OPERAND_BYTES if self.frozen else self.machine.cast_bytes()
        written = self.keys.by_precision(
            {name: copies[name] for name in self.machine.copies()}, 0.0
        )
        written = written + further_written * is_fp8
        ahead = gathered * self.framework.gathers_quantised * self.keys.sharded
        share = np.where(ahead > 0, 1.0 / self.keys.tensor_parallel, 1.0)
        copied = self.machine.fp8_transposed_copies and not self.frozen
        turned = np.where(ahead > 0, 1.0 * copied * is_fp8, 0.0)
        return elements * (share * read + turned), elements * (share * (written - turned) + turned)

    def _gathered_bytes(self, quantised: bool) -> Column | float:
        """Bytes of one gathered activation: those of the product's operand where it is cast."""
        if not (quantised and self.framework.gathers_quantised):
            return 2.0
        return self.keys.by_precision(
            {name: OPERAND_BYTES[name] for name in self.machine.copies()}, 2.0
        )

    def products(self, prefix: str, pieces: Pieces, *, own: bool = False) -> None:
        """Add the matrices among some pieces, each a linear layer of its own.

        Parameters
        ----------
        prefix : str
            What stands before their names.
        pieces : tuple of Piece
            A split one is sharded over the tensor-parallel ranks, of which each has all tokens.
        own : bool
            A whole one meets only the tokens of this rank's residual stream; otherwise every
            rank repeats it for all.
        """
        tokens = self.keys.stream_tokens if own else self.keys.tokens
        degree = self.keys.tensor_parallel
        for piece in pieces:
            if piece.kind != "matrix":
                continue
            inputs: Size = piece.inputs / degree if piece.split == "rows" else float(piece.inputs)
            outputs: Size = float(piece.outputs)
            if piece.split == "columns":
                outputs = np.maximum(piece.outputs / degree, 1.0)
            rows = tokens if piece.split == "whole" else self.keys.tokens
            self.linear(f"{prefix}.{piece.name}", rows, inputs, outputs, batch=float(piece.visited))

    def sum_over_tensor(self, name: str, width: float, product: str) -> None:
        """Add partial results that every rank needs whole, and as much for their gradients."""
        parallel = (self.keys.tensor_parallel > 1).astype(np.float64)
        for phase in ("forward", "backward_input"):
            collective = f"{name}.all_reduce"
            self._tensor(collective, phase, "all_reduce", width, parallel, product, "never")

    def enter_tensor_parallel(
        self, name: str, width: Size, product: str, *, quantised: bool = True
    ) -> None:
        """Add the communication ahead of a column-parallel product, which is added afterwards.

        Sequence parallelism gathers the sharded input (again in backward, where the
        gather hides behind the data gradient) and reduce-scatters its gradient;
        without it the gradient is all-reduced. Both hide behind the weight gradient
        (Korthikanti et al. 2022, section 4.2; Megatron-LM
        ``LinearWithGradAccumulationAndAsyncCommunication``).
        """
        sharded, parallel = self.keys.sharded, (self.keys.tensor_parallel > 1).astype(np.float64)
        plain = parallel * (1 - sharded)
        size = self._gathered_bytes(quantised)
        if quantised:
            self._cast_ahead_of_gather.add((product, "forward"))
            self._agree_on_scale(name, "forward")
        self._tensor(
            f"{name}.all_gather", "forward", "all_gather", width, sharded, product, "full", size
        )
        if not self.frozen:  # for the weight gradient
            self._tensor(
                f"{name}.all_gather",
                "backward_input",
                "all_gather",
                width,
                sharded,
                product,
                "backward",
                size,
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
        """Add the communication after a row-parallel product, which has been added before."""
        self._agree_on_scale(name, "backward_input")
        cast = (f"{product}.cast", "backward_input")
        read, written = self._cast_traffic(self.keys.tokens * width, True)
        for i, item in enumerate(self.operations):
            if isinstance(item, Stream) and (item.name, item.phase) == cast:
                self.operations[i] = replace(item, bytes_read=read, bytes_written=written)
        sharded, parallel = self.keys.sharded, (self.keys.tensor_parallel > 1).astype(np.float64)
        plain = parallel * (1 - sharded)
        self._tensor(
            f"{name}.reduce_scatter", "forward", "reduce_scatter", width, sharded, product, "full"
        )
        self._tensor(f"{name}.all_reduce", "forward", "all_reduce", width, plain, product, "never")
        self._tensor(
            f"{name}.all_gather",
            "backward_input",
            "all_gather",
            width,
            sharded,
            product,
            "full",
            self._gathered_bytes(quantised=True),
        )

    def _agree_on_scale(self, name: str, phase: str) -> None:
        """Reduce the maximum of what is cast ahead of a gather, over the ranks that share it.

        One number, and nothing beside it: shards of one operand need one scale where it comes from
        the tensor itself (Transformer Engine, ``with_amax_reduction`` of quantizers of current
        scaling and of nvfp4; blocks of mxfp8 have scales of their own).
        """
        if not self.framework.gathers_quantised:
            return
        of_itself = self.keys.equals("precision", PRECISIONS.index("nvfp4"))
        if self.framework.scaling == "current":
            of_itself = of_itself + self.keys.equals("precision", PRECISIONS.index("fp8"))
        count = self.keys.sharded * of_itself
        if np.any(count > 0):
            self.add(
                Communication(
                    f"{name}.scale",
                    phase,
                    "tensor",
                    "all_reduce",
                    4.0,
                    self.keys.tensor_parallel,
                    self.keys.tensor_stride,
                    count=count,
                )
            )

    def _tensor(
        self,
        name: str,
        phase: str,
        collective: str,
        width: Size,
        count: Column,
        product: str,
        needs: str,
        size: Size = 2.0,
    ) -> None:
        """Add one tensor-parallel collective of the tokens' hidden states, of `size` bytes each.

        `needs` is the least overlap setting that hides it. Where "full" overlap
        pipelines it with its own product, the first of t pieces has nothing beside it. What is
        gathered in 16 bits and cast behind that is no operand of a product: it cannot be
        pipelined with one (PyTorch's micro_pipeline_tp.py looks for a gather that is).
        """
        if not np.any(count > 0):
            return
        levels = ("none", "backward", "full", "never")
        setting = levels.index(self.framework.overlap_tensor_parallel)
        hides: Size = 1.0 if setting >= levels.index(needs) else 0.0
        if collective == "all_gather" and needs == "full" and not self.framework.gathers_quantised:
            hides = hides * (1.0 - self.keys.low_precision)
        self.add(
            Communication(
                name,
                phase,
                "tensor",
                collective,
                self.keys.tokens * width * size,
                self.keys.tensor_parallel,
                self.keys.tensor_stride,
                hidden_by=((product, phase),),
                hides=hides,
                tail=1.0 / self.keys.tensor_parallel if needs == "full" else 0.0,
                count=count,
            )
        )
