"""Operations of low-rank adapters beside frozen products, and of weights that are stored narrower.

Shape letters: T tokens on this device, r rank, f output features, t tensor-parallel degree.

Tensor ranks share adapters as Megatron-Bridge's and NeMo's ``ParallelLinearAdapter`` does
(peft/utils.py): beside a column-parallel product A is column-parallel, its r results are gathered
and B is column-parallel; beside a row-parallel one A is row-parallel, its results are summed, B is
column-parallel, and what it puts out is gathered over the hidden size (and in backward over the
sequence, where that is sharded). Norms hand on their gathered output, so that the input of A is not
gathered again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from perfmodel.base.columns import Column
from perfmodel.model.adapters import FROZEN_BYTES, TARGETS, AdapterSpec, of_experts
from perfmodel.operations.operation_list import OperationList
from perfmodel.operations.operations import Communication, LayerKeys, Machine, Size, Stream
from perfmodel.software.framework import Framework

MARK = ".lora"
"""What names of an adapter's operations have behind that of its product."""


def adapted(spec: AdapterSpec, product: str, widths: Sequence[Size]) -> Iterator[tuple[str, Size]]:
    """Yield the adapters of a product: what tells them apart, and their output features.

    Parameters
    ----------
    spec : AdapterSpec
    product : str
    widths : sequence of float or ndarray
        Output features of the matrices that stand in it side by side.
    """
    if spec.whole(product):
        yield "", sum(widths)
    elif product in TARGETS:
        names = TARGETS[product].matrices
        # A block that is not gated has no gate_proj, queries alone no k_proj.
        names = names[-len(widths) :] if product.startswith("mlp.") else names
        for name, width in zip(names, widths, strict=False):
            if name in spec.targets:
                yield f".{name}", width


def listed_operations(
    keys: LayerKeys, framework: Framework, machine: Machine, adapters: AdapterSpec | None
) -> OperationList:
    """Return an empty list, for layers with adapters or without."""
    if adapters is None:
        return OperationList(keys, framework, machine)
    return AdaptedList(keys, framework, machine, adapters)


class AdaptedList(OperationList):
    """Operations of layers whose products are frozen beside adapters."""

    def __init__(
        self, keys: LayerKeys, framework: Framework, machine: Machine, adapters: AdapterSpec
    ) -> None:
        super().__init__(keys, framework, machine)
        self.adapters = adapters
        self.frozen = True

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
        """Turn frozen weights into 16 bits, and add the adapters of their product.

        Parameters
        ----------
        product : str
            Its name.
        tokens, inputs, outputs : float or ndarray
            Rows, input and output features on this device (per expert with `batch`).
        widths : sequence of float or ndarray
            Output features of the matrices in it.
        batch, count : float or ndarray
            Experts of a grouped product, and how often it runs: each expert has an adapter, or all
            have one (`AdapterSpec.share_experts`).
        rows : float or ndarray
            Of a product, without what tiles on the borders between experts compute twice.
        """
        self._dequantise(product, inputs * outputs * batch, count)
        if self.adapters.covers(product):
            self._adapt(product, tokens, inputs, widths, batch, count, rows)

    def _adapt(
        self,
        product: str,
        tokens: Size,
        inputs: Size,
        widths: Sequence[Size],
        batch: Size,
        count: Size,
        rows: Size,
    ) -> None:
        """Add the adapters of a product that has some."""
        spec = self.adapters
        # An expert's ranks add up what their parts of it put out, and of its adapter along with it.
        split = "whole" if of_experts(product) else TARGETS[product].split
        if of_experts(product) and spec.share_experts:
            tokens = rows = rows * count
            batch = count = 1.0
        rank = float(spec.rank_of(product))
        for label, width in adapted(spec, product, widths):
            name = f"{product}{MARK}{label}"
            inner: Size = rank
            if split == "columns":
                inner = inner / self.keys.tensor_parallel
            outer = width / self.keys.tensor_parallel if split == "rows" else width
            with self.trained():
                self.linear(
                    f"{name}_down", tokens, inputs, inner, quantised=False, batch=batch, count=count
                )
                if split != "whole":
                    self._share_rank(name, split, rank)
                self.linear(
                    f"{name}_up",
                    tokens,
                    rank,
                    outer,
                    quantised=False,
                    batch=batch,
                    count=count,
                )
                if split == "rows":
                    self._share_output(name, width)
                self.stream(f"{name}_sum", rows * width, (4, 2), (0, 0), count=count)
                # The input's two gradients are added up.
                elements = rows * inputs
                gradient = f"{name}_gradient"
                self.add(
                    Stream(gradient, "backward_input", elements * 4, elements * 2, count=count)
                )
                if split == "columns":
                    self._share_gradient(name, inputs)

    def _dequantise(self, product: str, weights: Size, count: Size) -> None:
        """Turn frozen weights into 16 bits ahead of a product, in both passes.

        Nothing keeps the wide copy (bitsandbytes, ``MatMul4Bit``: forward and backward each call
        ``dequantize_4bit``).
        """
        if not self.adapters.frozen:
            return
        stored = FROZEN_BYTES[self.adapters.frozen]
        self.stream(
            f"{product}.dequantise", weights, (stored, 2.0), (stored, 2.0), flops=2.0, count=count
        )

    def _collective(
        self, name: str, phase: str, collective: str, width: Size, count: Column
    ) -> None:
        """Add a collective of the tensor ranks over all tokens, with nothing beside it."""
        if not np.any(count > 0):
            return
        self.add(
            Communication(
                f"{name}.{collective}",
                phase,
                "tensor",
                collective,
                self.keys.tokens * width * 2.0,
                self.keys.tensor_parallel,
                self.keys.tensor_stride,
                count=count,
            )
        )

    def _parallel(self) -> Column:
        return (self.keys.tensor_parallel > 1) * 1.0

    def _share_rank(self, name: str, split: str, rank: float) -> None:
        """Have every tensor rank know all r results of A, and sum their gradients."""
        forward = "all_gather" if split == "columns" else "all_reduce"
        self._collective(f"{name}_down", "forward", forward, rank, self._parallel())
        self._collective(f"{name}_down", "backward_input", "all_reduce", rank, self._parallel())

    def _share_output(self, name: str, width: Size) -> None:
        """Gather what B puts out beside a row-parallel product."""
        self._collective(f"{name}_up", "forward", "all_gather", width, self._parallel())
        self._collective(f"{name}_up", "backward_input", "all_gather", width, self.keys.sharded)

    def _share_gradient(self, name: str, inputs: Size) -> None:
        """Sum the gradients of the input of A; where it is sharded, the product's own sum does."""
        plain = self._parallel() * (1.0 - self.keys.sharded)
        self._collective(f"{name}_gradient", "backward_input", "all_reduce", inputs, plain)
