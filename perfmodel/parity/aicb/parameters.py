"""Parameters that AICB counts, layer by layer, on one tensor-parallel rank.

The counts are AICB's, not the models' own: no grouped-query attention, two matrices in a
gated MLP, four word embeddings, a position table as long as the sequence, an LM head only
with sequence parallelism. They set the sizes of the gradient collectives.

Sources: aicb 23eec3c4, ``mocked_model/training/MockedMegatron.py`` (MM) and
``MockedDeepSeek.py`` (DS); which layers a file lists: ``get_model_details``, lines 106-145
of the training generator, in the order in which the model holds them.
"""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.base.errors import StrategyError
from perfmodel.parity.aicb.arguments import AicbArguments

DEEPSEEK = "DeepSeek"
MOST_LAYERS = 100_000  # of a stage: far beyond any model, little enough to hold


class Layer(NamedTuple):
    """A layer of AICB's list.

    Attributes
    ----------
    name : str
        As in the file's rows; ``fused`` layers (layer norms) have no row.
    parameters : int
        Elements on one tensor-parallel rank.
    """

    name: str
    parameters: int


def layers_of_stage(arguments: AicbArguments) -> list[Layer]:
    """Return the layers of one pipeline stage, the embedding and the LM head included.

    Raises
    ------
    StrategyError
        A width that tensor parallelism does not divide, or more than `MOST_LAYERS` layers.
    """
    embedding = Layer("embedding_layer", _embedding(arguments))
    # AICB builds the LM head in either case, and with it checks its width.
    head = _column("final", arguments.hidden_size, arguments.padded_vocab_size, arguments)
    layers = [embedding, *_blocks(arguments)]
    return [*layers, head] if arguments.enable_sequence_parallel else layers


def total_parameters(layers: list[Layer]) -> tuple[int, int]:
    """Return all parameters, and those of layers with ``moe`` in their name."""
    experts = sum(layer.parameters for layer in layers if "moe" in layer.name)
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
        _column("attention", hidden, 3 * width, arguments),
        _row("attention", width, hidden, arguments),
    ]
    if arguments.moe_enable:  # only with sequence parallelism
        mlp = [Layer("mlp_moelayer", _experts(arguments, matrices=2))]
        return [*attention, _layer_norm(hidden), *mlp]
    mlp = _mlp(arguments)
    if arguments.enable_sequence_parallel:
        return [*attention, _layer_norm(hidden), *mlp]
    return [_joined("attention_layer", attention), _joined("mlp_layer", mlp)]


def _deepseek_block(arguments: AicbArguments, dense: bool) -> list[Layer]:
    """Return the layers of one DeepSeek layer (DS:96-290, 335-420)."""
    hidden, heads = arguments.hidden_size, arguments.attention_heads
    query_rank, key_value_rank = arguments.q_lora_rank, arguments.kv_lora_rank
    query_width = heads * (arguments.qk_nope_dim + arguments.qk_rope_dim)
    key_value_width = heads * (arguments.qk_nope_dim + arguments.v_head_dim)
    attention = [
        _linear("attention_linear_q_lora", hidden, query_rank, arguments),
        _layer_norm(query_rank),
        _column("attention_q", query_rank, query_width, arguments),
        _linear(
            "attention_linear_kv_lora", hidden, key_value_rank + arguments.qk_rope_dim, arguments
        ),
        _layer_norm(key_value_rank),
        _column("attention_kv", key_value_rank, key_value_width, arguments),
        _row("attention_o", heads * arguments.v_head_dim, hidden, arguments),
    ]
    mlp = _mlp(arguments) if dense or arguments.n_shared_expert > 0 else []
    if not arguments.enable_sequence_parallel:
        attention = [_joined("attention_layer_mla", attention)]
        mlp = [_joined("mlp_layer", mlp)] if mlp else []
    else:
        attention.append(_layer_norm(hidden))
    if dense:
        return [*attention, *mlp]
    # The shared expert counts with the experts, and a second time as layers of its own.
    experts = _experts(arguments, matrices=3) + sum(layer.parameters for layer in mlp)
    return [*attention, Layer("mlp_moelayer", experts), *mlp]


def _embedding(arguments: AicbArguments) -> int:
    """Return the embedding's parameters (MM:575-590)."""
    words = 4 * (arguments.padded_vocab_size // arguments.tensor_model_parallel_size)
    return (words + arguments.seq_length) * arguments.hidden_size


def _mlp(arguments: AicbArguments) -> list[Layer]:
    """Return both matrices of an MLP; a gate's matrix is not counted (MM:344-369)."""
    inner = arguments.feed_forward_size
    return [
        _column("mlp", arguments.hidden_size, inner, arguments),
        _row("mlp", inner, arguments.hidden_size, arguments),
    ]


def _experts(arguments: AicbArguments, matrices: int) -> int:
    """Return the parameters of a rank's experts (MM:399-407, DS:253-262)."""
    local = arguments.num_experts // arguments.expert_model_parallel_size
    width = _part(arguments.feed_forward_size * local, "the experts' inner width", arguments)
    return matrices * arguments.hidden_size * width


def _column(prefix: str, inputs: int, outputs: int, arguments: AicbArguments) -> Layer:
    """Return a linear layer whose outputs are divided (MM:118-160)."""
    part = _part(outputs, f"the output of {prefix}_column", arguments)
    bias = part if arguments.add_bias_linear else 0
    return Layer(f"{prefix}_column", inputs * part + bias)


def _row(prefix: str, inputs: int, outputs: int, arguments: AicbArguments) -> Layer:
    """Return a linear layer whose inputs are divided, its bias whole (MM:20-50)."""
    part = _part(inputs, f"the input of {prefix}_row", arguments)
    bias = outputs if arguments.add_bias_linear else 0
    return Layer(f"{prefix}_row", part * outputs + bias)


def _linear(name: str, inputs: int, outputs: int, arguments: AicbArguments) -> Layer:
    """Return a linear layer that every rank holds whole (DS:32-72)."""
    return Layer(name, (inputs + (1 if arguments.add_bias_linear else 0)) * outputs)


def _layer_norm(width: int) -> Layer:
    """Return a layer norm: weight and bias (MM:261-266)."""
    return Layer("fused", 2 * width)


def _joined(name: str, layers: list[Layer]) -> Layer:
    """Return several layers as one."""
    return Layer(name, sum(layer.parameters for layer in layers))


def _part(width: int, what: str, arguments: AicbArguments) -> int:
    """Return a tensor-parallel rank's part of a width."""
    if width % arguments.tensor_model_parallel_size:
        raise StrategyError(
            f"{what}, {width}, is no multiple of "
            f"--tensor_model_parallel_size={arguments.tensor_model_parallel_size}"
        )
    return width // arguments.tensor_model_parallel_size
