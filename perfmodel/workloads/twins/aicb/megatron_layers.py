"""Passes of the layers of AICB's Megatron CSV workload: matrix products and collectives.

`model_passes` holds the events of one micro-batch on one pipeline stage, of Megatron's model or
of DeepSeek's (``--frame=DeepSeek``), which differs in

- attention: two linear layers that every rank holds whole, of which AICB writes one product in
  the backward pass, the gradient of their weights;
- experts: no message that prepares them, a dispatch in FP8 whose size has a point, as a shared
  expert an MLP of their own width, however many there are, and no need of ``--moe_enable``.

Sources: aliyun/aicb 23eec3c4, ``workload_generator/mocked_model/training/MockedMegatron.py``
(MM) and ``MockedDeepSeek.py`` (DS).
"""

from __future__ import annotations

from perfmodel.workloads.formats.aicb_tables import AicbEvent, Number, Product, Shape
from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.csv_events import ELEMENT_SIZE, collective
from perfmodel.workloads.twins.aicb.parameters import DEEPSEEK

# A token in FP8 with 4 bytes of scale per 128, relative to 16 bits (DS:27).
FP8_FACTOR = (1 + 4 / 128) / 2


def model_passes(arguments: AicbArguments) -> tuple[list[AicbEvent], list[AicbEvent]]:
    """Return a stage's passes of one micro-batch (MM:563-680; DS: ``DeepSeekV3Model``).

    Parameters
    ----------
    arguments : AicbArguments
        DeepSeek's first ``n_dense_layers`` layers of a stage have an MLP, others experts.

    Returns
    -------
    (list of AicbEvent, list of AicbEvent)
        Forward and backward. The backward pass has the layers in reverse order, and in a layer
        its linear layers in forward order.
    """
    deepseek = arguments.frame == DEEPSEEK
    dense = min(arguments.n_dense_layers, arguments.layers_per_stage) if deepseek else 0
    others = arguments.layers_per_stage - dense
    layer = _deepseek_layer if deepseek else _layer
    forward = [
        *_embedding(arguments, "forward"),
        *_deepseek_dense_layer(arguments, "forward") * dense,
        *layer(arguments, "forward") * others,
    ]
    backward = [
        *layer(arguments, "backward") * others,
        *_deepseek_dense_layer(arguments, "backward") * dense,
        *_embedding(arguments, "backward"),
    ]
    return forward, backward


def tensor_parallel(
    arguments: AicbArguments, kind: str, size: int, stage: str, source: int | None = None
) -> AicbEvent:
    """Return a collective of the tensor-parallel ranks; sizes in bytes."""
    split = arguments.tensor_model_parallel_size
    return collective(kind, "tp_group", split, size, stage, source)


def activation_size(arguments: AicbArguments) -> int:
    """Return the size of a micro-batch's activations [B]."""
    tokens = arguments.seq_length * arguments.micro_batch
    return ELEMENT_SIZE * arguments.hidden_size * tokens


def _layer(arguments: AicbArguments, phase: str) -> list[AicbEvent]:
    """Return a pass of one of Megatron's transformer layers."""
    return [*_attention(arguments, phase), *_mlp(arguments, phase)]


def _deepseek_dense_layer(arguments: AicbArguments, phase: str) -> list[AicbEvent]:
    """Return a pass of one of DeepSeek's first layers."""
    return [*_latent_attention(arguments, phase), *_dense_mlp(arguments, phase)]


def _deepseek_layer(arguments: AicbArguments, phase: str) -> list[AicbEvent]:
    """Return a pass of a layer with experts; in the backward pass only the shared one has rows."""
    experts = _exchange_tokens(arguments, FP8_FACTOR) if phase == "forward" else []
    shared = _dense_mlp(arguments, phase) if arguments.n_shared_expert > 0 else []
    return [*_latent_attention(arguments, phase), *experts, *shared]


def _embedding(arguments: AicbArguments, phase: str) -> list[AicbEvent]:
    """Return the embedding's all-reduce (MM:595-625)."""
    if arguments.tensor_model_parallel_size == 1:
        return []
    size = activation_size(arguments)
    return [tensor_parallel(arguments, "all_reduce", size, f"{phase}.MegatronEmbedding")]


def _attention(arguments: AicbArguments, phase: str) -> list[AicbEvent]:
    """Return a pass of the projections around attention (MM:269-336)."""
    hidden = arguments.hidden_size
    width = hidden // arguments.attention_heads * arguments.attention_heads
    return [
        *_column(arguments, phase, "attention", hidden, 3 * width),
        *_row(arguments, phase, "attention", width, hidden),
    ]


def _mlp(arguments: AicbArguments, phase: str) -> list[AicbEvent]:
    """Return a pass of the MLP, or of the experts."""
    if arguments.moe_enable:
        return _experts(arguments) if phase == "forward" else []
    return _dense_mlp(arguments, phase)


def _dense_mlp(arguments: AicbArguments, phase: str) -> list[AicbEvent]:
    """Return a pass of an MLP's two linear layers."""
    hidden, inner = arguments.hidden_size, arguments.feed_forward_size
    return [
        *_column(arguments, phase, "mlp", hidden, inner),
        *_row(arguments, phase, "mlp", inner, hidden),
    ]


def _latent_attention(arguments: AicbArguments, phase: str) -> list[AicbEvent]:
    """Return a pass of the projections around DeepSeek's attention (DS: ``DeepSeekMLA``)."""
    a, heads = arguments, arguments.attention_heads
    query_width = heads * (a.qk_nope_dim + a.qk_rope_dim)
    key_value_width = heads * (a.qk_nope_dim + a.v_head_dim)
    compressed = a.kv_lora_rank + a.qk_rope_dim
    return [
        *_whole(a, phase, "attention_linear_q_lora", a.hidden_size, a.q_lora_rank),
        *_column(a, phase, "attention_q", a.q_lora_rank, query_width),
        *_whole(a, phase, "attention_linear_kv_lora", a.hidden_size, compressed),
        *_column(a, phase, "attention_kv", a.kv_lora_rank, key_value_width),
        *_row(a, phase, "attention_o", heads * a.v_head_dim, a.hidden_size),
    ]


def _experts(arguments: AicbArguments) -> list[AicbEvent]:
    """Return the forward pass of a MoE layer (MM:411-495); its backward pass has no rows."""
    split, experts = arguments.tensor_model_parallel_size, arguments.expert_model_parallel_size
    prepared: list[AicbEvent] = []
    if split > 1 or experts > 1:
        counts = ELEMENT_SIZE * experts * arguments.num_experts * split
        prepared = [_expert_event("all_gather", "ep_group", counts, "preprocess")]
    return [*prepared, *_exchange_tokens(arguments, 1)]


def _exchange_tokens(arguments: AicbArguments, dispatch_factor: float) -> list[AicbEvent]:
    """Return what sends tokens to their experts and back (MM:411-495; DS: ``DeepSeekMoE``)."""
    split, experts = arguments.tensor_model_parallel_size, arguments.expert_model_parallel_size
    routed = arguments.seq_length * arguments.hidden_size * arguments.micro_batch
    routed *= arguments.moe_router_topk
    sent = routed // split * ELEMENT_SIZE
    events = [
        ("all_to_all", "ep_group", sent * dispatch_factor, "dispatch", experts > 1),
        ("all_gather", "tp_group", routed * ELEMENT_SIZE, "permutation", split > 1),
        ("reduce_scatter", "tp_group", routed * ELEMENT_SIZE, "unpermutation", split > 1),
        ("all_to_all", "ep_group", sent, "combine", experts > 1),
    ]
    return [
        _expert_event(kind, group, size, name) for kind, group, size, name, there in events if there
    ]


def _expert_event(kind: str, group: str, size: Number, name: str) -> AicbEvent:
    """Return a collective of a MoE layer; AICB leaves out how many ranks take part."""
    return AicbEvent(kind, group, None, size, f"forward.MoE.{name}")


def _whole(
    arguments: AicbArguments, phase: str, name: str, inputs: int, outputs: int
) -> list[AicbEvent]:
    """Return a pass of a linear layer that every rank holds whole (DS: ``DeepSeekLinear``)."""
    rows = (arguments.seq_length, arguments.micro_batch)
    tokens = arguments.seq_length * arguments.micro_batch
    forward = phase == "forward"
    left: Shape = (*rows, inputs) if forward else (outputs, tokens)
    right: Shape = (inputs, outputs) if forward else (tokens, inputs)
    return _computation(arguments, (left, right), f"{phase}.Linear.{name}")


def _column(
    arguments: AicbArguments, phase: str, name: str, inputs: int, outputs: int
) -> list[AicbEvent]:
    """Return a pass of a linear layer whose outputs are divided (MM:165-258)."""
    split, sequence_parallel = _splits(arguments)
    length = arguments.seq_length * (split if sequence_parallel else 1)
    rows, tokens = (length, arguments.micro_batch), length * arguments.micro_batch
    part = outputs // split
    stage = f"{phase}.MegatronColumnLinear"
    size = ELEMENT_SIZE * arguments.seq_length * arguments.micro_batch * inputs

    def product(left: Shape, right: Shape) -> list[AicbEvent]:
        return _computation(arguments, (left, right), f"{stage}.{name}_column")

    def exchange(kind: str, there: bool) -> list[AicbEvent]:
        return [tensor_parallel(arguments, kind, size, stage)] if there else []

    if phase == "forward":
        gather = exchange("all_gather", sequence_parallel)
        return [*gather, *product((*rows, inputs), (inputs, part))]
    return [
        *exchange("all_gather", sequence_parallel),
        *product((*rows, part), (part, inputs)),
        *exchange("reduce_scatter", sequence_parallel),
        *product((part, tokens), (tokens, inputs)),
        *exchange("all_reduce", split > 1 and not sequence_parallel),
    ]


def _row(
    arguments: AicbArguments, phase: str, name: str, inputs: int, outputs: int
) -> list[AicbEvent]:
    """Return a pass of a linear layer whose inputs are divided (MM:50-118)."""
    split, sequence_parallel = _splits(arguments)
    rows = (arguments.seq_length, arguments.micro_batch)
    tokens = arguments.seq_length * arguments.micro_batch
    part = inputs // split
    stage = f"{phase}.MegatronRowLinear"
    size = ELEMENT_SIZE * tokens * outputs
    if phase == "forward":
        kind = "reduce_scatter" if sequence_parallel else "all_reduce"
        reduce = [tensor_parallel(arguments, kind, size, stage)] if split > 1 else []
        shapes = ((*rows, part), (part, outputs))
        return [*_computation(arguments, shapes, f"{stage}.{name}_row"), *reduce]
    gather = [tensor_parallel(arguments, "all_gather", size, stage)] if sequence_parallel else []
    products = (((*rows, outputs), (outputs, part)), ((outputs, tokens), (tokens, part)))
    computed = (_computation(arguments, shapes, f"{stage}{name}_row") for shapes in products)
    return [*gather, *(event for events in computed for event in events)]


def _splits(arguments: AicbArguments) -> tuple[int, bool]:
    """Return the tensor-parallel degree, and whether sequences are divided too."""
    split = arguments.tensor_model_parallel_size
    return split, split > 1 and arguments.enable_sequence_parallel


def _computation(arguments: AicbArguments, shapes: Product, stage: str) -> list[AicbEvent]:
    """Return a matrix product, where AICB is to write them."""
    if not arguments.computes:
        return []
    return [AicbEvent("computation", message_size=shapes, stage=stage)]
