"""Parameters that AICB counts, layer by layer, on one tensor-parallel rank.

The counts are AICB's, not the models' own: no grouped-query attention, two matrices in a
gated MLP, four word embeddings, a position table as long as the sequence, an LM head only
with sequence parallelism. They set the sizes of the gradient collectives.

Sources: aicb 23eec3c4, ``mocked_model/training/MockedMegatron.py`` (MM) and
``MockedDeepSeek.py`` (DS); which layers a file lists: ``get_model_details``, lines 106-145
of the training generator, in the order in which the model holds them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.twins.aicb.arguments import AicbArguments

DEEPSEEK = "DeepSeek"
# A token in FP8 with an FP32 scale per 128, over BF16 (MockedDeepSeek.py:28), as DeepEP sends it.
FP8_FACTOR = (1 + 4 / 128) / 2
MOST_LAYERS = 100_000  # of a stage: far beyond any model, little enough to hold


class Role(StrEnum):
    """What a layer is to AICB, which reads it from the layer's name."""

    EMBEDDING = "embedding"
    """Word and position embeddings (``embedding`` in the name)."""
    COLUMN = "column"
    """A linear layer whose outputs are divided (``column``)."""
    ROW = "row"
    """A linear layer whose inputs are divided (``row``)."""
    WHOLE = "whole"
    """A linear layer that every rank holds whole (``attention_linear``)."""
    JOINED = "joined"
    """Linear layers with one row for all of them, without sequence parallelism."""
    EXPERTS = "experts"
    """Routed experts (``moelayer``)."""
    NORM = "norm"
    """A layer norm (``fused``), which has no row."""


class Layer(NamedTuple):
    """A layer of AICB's list.

    Attributes
    ----------
    name : str
        As in the file's rows.
    block : str
        First word of the name, by which AICB looks a time up: "embedding", "attention", "mlp",
        "final" (the LM head) or "fused".
    role : Role
    parameters : int
        Elements on one tensor-parallel rank.
    """

    name: str
    block: str
    role: Role
    parameters: int


def layers_of_stage(arguments: AicbArguments) -> list[Layer]:
    """Return the layers of one pipeline stage, the embedding and the LM head included.

    Raises
    ------
    StrategyError
        A width that tensor parallelism does not divide, or more than `MOST_LAYERS` layers.
    """
    embedding = Layer("embedding_layer", "embedding", Role.EMBEDDING, _embedding(arguments))
    # AICB builds the LM head in either case, and with it checks its width.
    head = _column("final", "", arguments.hidden_size, arguments.padded_vocab_size, arguments)
    layers = [embedding, *_blocks(arguments)]
    return [*layers, head] if arguments.enable_sequence_parallel else layers


def total_parameters(layers: list[Layer]) -> tuple[int, int]:
    """Return all parameters, and those of routed experts."""
    experts = sum(layer.parameters for layer in layers if layer.role == Role.EXPERTS)
    return sum(layer.parameters for layer in layers), experts


def _blocks(arguments: AicbArguments) -> list[Layer]:
    """Return the layers of all transformer layers; DeepSeek's first ones are dense."""
    count = arguments.layers_per_stage
    if count > MOST_LAYERS:
        raise StrategyError(f"{count} layers of a stage; at most {MOST_LAYERS} are written")
    if arguments.frame != DEEPSEEK:
        return _megatron_block(arguments) * count if count else []
    dense = min(arguments.n_dense_layers, count)
    layers = _deepseek_block(arguments, dense=True) * dense if dense else []
    if count > dense:
        layers += _deepseek_block(arguments, dense=False) * (count - dense)
    return layers


def _megatron_block(arguments: AicbArguments) -> list[Layer]:
    """Return the layers of one transformer layer (MM:505-560)."""
    hidden = arguments.hidden_size
    width = hidden // arguments.attention_heads * arguments.attention_heads
    attention = [
        _column("attention", "", hidden, 3 * width, arguments),
        _row("attention", "", width, hidden, arguments),
    ]
    if arguments.moe_enable:  # only with sequence parallelism
        mlp = [_expert_layer(_experts(arguments, matrices=2))]
        return [*attention, _layer_norm(hidden), *mlp]
    mlp = _mlp(arguments)
    if arguments.enable_sequence_parallel:
        return [*attention, _layer_norm(hidden), *mlp]
    return [_joined("attention", "_layer", attention), _joined("mlp", "_layer", mlp)]


def _deepseek_block(arguments: AicbArguments, dense: bool) -> list[Layer]:
    """Return the layers of one DeepSeek layer (DS:96-290, 335-420)."""
    hidden, heads = arguments.hidden_size, arguments.attention_heads
    query_rank, key_value_rank = arguments.q_lora_rank, arguments.kv_lora_rank
    query_width = heads * (arguments.qk_nope_dim + arguments.qk_rope_dim)
    key_value_width = heads * (arguments.qk_nope_dim + arguments.v_head_dim)
    attention = [
        _linear("attention", "_linear_q_lora", hidden, query_rank, arguments),
        _layer_norm(query_rank),
        _column("attention", "_q", query_rank, query_width, arguments),
        _linear(
            "attention",
            "_linear_kv_lora",
            hidden,
            key_value_rank + arguments.qk_rope_dim,
            arguments,
        ),
        _layer_norm(key_value_rank),
        _column("attention", "_kv", key_value_rank, key_value_width, arguments),
        _row("attention", "_o", heads * arguments.v_head_dim, hidden, arguments),
    ]
    mlp = _mlp(arguments) if dense or arguments.n_shared_expert > 0 else []
    if not arguments.enable_sequence_parallel:
        attention = [_joined("attention", "_layer_mla", attention)]
        mlp = [_joined("mlp", "_layer", mlp)] if mlp else []
    else:
        attention.append(_layer_norm(hidden))
    if dense:
        return [*attention, *mlp]
    # The shared expert counts with the experts, and a second time as layers of its own.
    experts = _experts(arguments, matrices=3) + sum(layer.parameters for layer in mlp)
    return [*attention, _expert_layer(experts), *mlp]


def _embedding(arguments: AicbArguments) -> int:
    """Return the embedding's parameters (MM:575-590)."""
    words = 4 * (arguments.padded_vocab_size // arguments.tensor_model_parallel_size)
    return (words + arguments.seq_length) * arguments.hidden_size


def _mlp(arguments: AicbArguments) -> list[Layer]:
    """Return both matrices of an MLP; a gate's matrix is not counted (MM:344-369)."""
    inner = arguments.feed_forward_size
    return [
        _column("mlp", "", arguments.hidden_size, inner, arguments),
        _row("mlp", "", inner, arguments.hidden_size, arguments),
    ]


def _experts(arguments: AicbArguments, matrices: int) -> int:
    """Return the parameters of a rank's experts (MM:399-407, DS:253-262)."""
    local = arguments.num_experts // arguments.expert_model_parallel_size
    width = _part(arguments.feed_forward_size * local, "the experts' inner width", arguments)
    return matrices * arguments.hidden_size * width


def _expert_layer(parameters: int) -> Layer:
    return Layer("mlp_moelayer", "mlp", Role.EXPERTS, parameters)


def _column(block: str, which: str, inputs: int, outputs: int, arguments: AicbArguments) -> Layer:
    """Return a linear layer whose outputs are divided (MM:118-160)."""
    name = f"{block}{which}_column"
    part = _part(outputs, f"the output of {name}", arguments)
    bias = part if arguments.add_bias_linear else 0
    return Layer(name, block, Role.COLUMN, inputs * part + bias)


def _row(block: str, which: str, inputs: int, outputs: int, arguments: AicbArguments) -> Layer:
    """Return a linear layer whose inputs are divided, its bias whole (MM:20-50)."""
    name = f"{block}{which}_row"
    part = _part(inputs, f"the input of {name}", arguments)
    bias = outputs if arguments.add_bias_linear else 0
    return Layer(name, block, Role.ROW, part * outputs + bias)


def _linear(block: str, which: str, inputs: int, outputs: int, arguments: AicbArguments) -> Layer:
    """Return a linear layer that every rank holds whole (DS:32-72)."""
    parameters = (inputs + (1 if arguments.add_bias_linear else 0)) * outputs
    return Layer(f"{block}{which}", block, Role.WHOLE, parameters)


def _layer_norm(width: int) -> Layer:
    """Return a layer norm: weight and bias (MM:261-266)."""
    return Layer("fused", "fused", Role.NORM, 2 * width)


def _joined(block: str, which: str, layers: list[Layer]) -> Layer:
    """Return several layers as one."""
    parameters = sum(layer.parameters for layer in layers)
    return Layer(f"{block}{which}", block, Role.JOINED, parameters)


def _part(width: int, what: str, arguments: AicbArguments) -> int:
    """Return a tensor-parallel rank's part of a width."""
    if width % arguments.tensor_model_parallel_size:
        raise StrategyError(
            f"{what}, {width}, is no multiple of "
            f"--tensor_model_parallel_size={arguments.tensor_model_parallel_size}"
        )
    return width // arguments.tensor_model_parallel_size
