"""The model of AICB's DeepSpeed workloads: LLaMA's parameters and their matrix products.

Source: aliyun/aicb 23eec3c4, ``workload_generator/mocked_model/MockedDeepspeed.py``; the
products are in the generators of the stages.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.formats.aicb_tables import AicbEvent
from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.csv_events import ELEMENT_SIZE


@dataclass(frozen=True, slots=True)
class Tensor:
    """A parameter of the model; a vector has one column."""

    rows: int
    columns: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.rows * self.columns

    @property
    def size(self) -> int:
        """Size with 16 bits per element [B]."""
        return self.elements * ELEMENT_SIZE


def llama_tensors(arguments: AicbArguments) -> tuple[Tensor, ...]:
    """Return the parameters in the order of the forward pass: 9 per layer and 3.

    Raises
    ------
    StrategyError
        More heads than the hidden size has elements.
    """
    hidden, inner = arguments.hidden_size, arguments.feed_forward_size
    if arguments.attention_heads > hidden:
        raise StrategyError(
            f"--num_attention_heads={arguments.attention_heads} is more than --hidden_size={hidden}"
        )
    heads = (hidden // arguments.attention_heads) * arguments.attention_heads
    norm, projection = Tensor(hidden, 1), Tensor(hidden, heads)
    attention = (projection, projection, projection, Tensor(heads, hidden))
    mlp = (Tensor(hidden, inner), Tensor(inner, hidden), Tensor(hidden, inner))  # gate, down, up
    layer = (norm, *attention, norm, *mlp)
    # The vocabulary is not padded, nothing is divided over tensor-parallel ranks.
    embedding = Tensor(arguments.vocab_size, hidden)
    head = Tensor(hidden, arguments.vocab_size)
    return (embedding, *layer * arguments.num_layers, norm, head)


def forward_products(arguments: AicbArguments, tensor: Tensor) -> list[AicbEvent]:
    """Return the product of the activations with a tensor; none for vectors."""
    if tensor.columns == 1 or not arguments.computes:
        return []
    return [_product(arguments, tensor, "forward.computation")]


def backward_products(arguments: AicbArguments, tensor: Tensor, stage: str) -> list[AicbEvent]:
    """Return the products for the gradients of a tensor's input, and of itself.

    AICB gives the input gradient the shapes of the forward product. `stage` is that of the
    second product.
    """
    if tensor.columns == 1 or not arguments.computes:
        return []
    tokens = arguments.micro_batch * arguments.seq_length
    shapes = ((tensor.rows, tokens), (tokens, tensor.columns))
    weight_gradient = AicbEvent("computation", message_size=shapes, stage=stage)
    return [_product(arguments, tensor, "backward.computation"), weight_gradient]


def _product(arguments: AicbArguments, tensor: Tensor, stage: str) -> AicbEvent:
    """Return the product of (batch, sequence, rows) and (rows, columns)."""
    activations = (arguments.micro_batch, arguments.seq_length, tensor.rows)
    shapes = (activations, (tensor.rows, tensor.columns))
    return AicbEvent("computation", message_size=shapes, stage=stage)
