"""AICB's CSV workload of Megatron: the events of one rank, and the passes of the layers.

AICB's CSV workload of Megatron: the events of one rank, byte for byte.

With one pipeline stage every micro-batch is a forward pass, its loss and a backward pass. With
more, `one_forward_one_backward` writes the 1F1B schedule of a stage: warm-up passes, then a
forward and a backward pass in turn, then the remaining backward passes, with the messages to
both neighbours.

What AICB's files show and Megatron does not do, kept:

- every stage embeds tokens, none has the LM head's passes, and with a pipeline none has a loss;
- the optimizer's step is written twice with a pipeline, and its sizes are divided by the
  number of stages once more, though the layers are already;
- a layer's backward pass has its linear layers in forward order; MoE layers have none;
- with sequence parallelism column layers multiply ``tensor parallel`` sequences (AICB takes
  ``--seq_length`` for the shard's length, yet sends sizes of the whole), and the layernorm
  all-reduce has 0 bytes;
- a message names its group with one member; MoE rows have no group size.

Sources: aliyun/aicb 23eec3c4, ``workload_generator/generate_megatron_workload.py`` (GM),
``workload_generator/workload_generator.py`` and
``workload_generator/mocked_model/training/MockedMegatron.py`` (MM). The layers' passes are in
`perfmodel.workloads.twins.aicb.megatron_csv`.

Passes of the layers of AICB's Megatron CSV workload: matrix products and collectives.

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

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.formats.aicb_tables import (
    AicbEvent,
    Number,
    Product,
    Shape,
    format_aicb_csv,
)
from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.csv_events import (
    ELEMENT_SIZE,
    ITERATION_END,
    check_rows,
    collective,
    csv_file_name,
)
from perfmodel.workloads.twins.aicb.parameters import (
    DEEPSEEK,
    FP8_FACTOR,
    Role,
    layers_of_stage,
    total_parameters,
)

FRAMES = ("Megatron", DEEPSEEK)
ROWS_OF_A_LAYER = 40  # at most, in a forward and a backward pass together
WORD = 8  # element of Megatron's integer tensors [B]
LOSSES = 3  # all-reduces of the vocabulary-parallel cross entropy


def megatron_csv(arguments: AicbArguments, stage: int = 0) -> str:
    """Write the workload that AICB's Megatron generator writes.

    Parameters
    ----------
    arguments : AicbArguments
    stage : int
        Pipeline stage; with ``--workload_only`` AICB writes the first one's file.

    Returns
    -------
    str
        Text of the CSV file.

    Raises
    ------
    StrategyError
        As of `megatron_events`.
    """
    return format_aicb_csv(megatron_events(arguments, stage))


def megatron_events(arguments: AicbArguments, stage: int = 0) -> list[AicbEvent]:
    """Return the rows of `megatron_csv`.

    Raises
    ------
    StrategyError
        A frame without a model here; no such stage; a width that tensor parallelism does not
        divide; more rows than may be written.
    """
    if arguments.frame not in FRAMES:
        raise StrategyError(
            f"--frame={arguments.frame}: AICB itself stops here; its Megatron workload is of "
            f"{' or '.join(FRAMES)}"
        )
    stages = arguments.pipeline_model_parallel
    if not 0 <= stage < stages:
        raise StrategyError(f"pipeline stage {stage}: stages 0 to {stages - 1} exist")
    passes = arguments.epoch_num * max(arguments.micro_batches, 1)
    rows = passes * ROWS_OF_A_LAYER * (arguments.layers_per_stage + 1) + 3 * stages
    check_rows(rows, arguments)
    forward, backward = model_passes(arguments)
    events = [*_start(arguments, stage), ITERATION_END]
    for _ in range(arguments.epoch_num):
        if stages > 1:
            events += one_forward_one_backward(arguments, stage, forward, backward)
            events += optimizer_step(arguments)
        else:
            inputs = _inputs(arguments) if arguments.tensor_model_parallel_size > 1 else []
            micro_batch = [*inputs, *forward, *_loss(arguments), *backward]
            events += micro_batch * arguments.micro_batches
        events += optimizer_step(arguments)
        events.append(ITERATION_END)
    return events


def file_name(arguments: AicbArguments) -> str:
    """Return the name that AICB gives the file."""
    return csv_file_name(arguments, "megatron")


def one_forward_one_backward(
    arguments: AicbArguments,
    stage: int,
    forward: Sequence[AicbEvent],
    backward: Sequence[AicbEvent],
) -> list[AicbEvent]:
    """Return the 1F1B schedule of a stage (GM:134-330).

    Parameters
    ----------
    arguments : AicbArguments
    stage : int
    forward, backward : sequence of AicbEvent
        Passes of one micro-batch.

    Returns
    -------
    list of AicbEvent
        Every message that a stage sends is one that its neighbour receives.
    """
    first, last = stage == 0, stage == arguments.pipeline_model_parallel - 1
    micro_batches = arguments.micro_batches
    warm_up = min(arguments.pipeline_model_parallel - stage - 1, micro_batches)
    steady = micro_batches - warm_up
    one_pass = [*_inputs(arguments), *forward]

    def message(kind: str, direction: str, phase: str, missing: bool) -> list[AicbEvent]:
        if missing:
            return []
        size = arguments.activation_size
        return [AicbEvent(kind, "pp_group", 1, size, f"{phase}_step", additional=direction)]

    receive_input = message("irecv", "recv_prev", "forward", first)
    send_output = message("isend", "send_next", "forward", last)
    events = [*receive_input, *one_pass, *send_output] * warm_up
    if steady:
        events += receive_input
    # In the steady state a stage receives the gradient before it sends its own output.
    receive_gradient = message("irecv", "recv_next", "forward", last)
    send_gradient = message("isend", "send_prev", "backward", first)
    next_input = message("irecv", "recv_prev", "backward", first)
    turn = [*one_pass, *receive_gradient, *send_output, *backward, *send_gradient]
    events += [*turn, *next_input] * (steady - 1)
    events += turn if steady else []
    receive_gradient = message("irecv", "recv_next", "backward", last)
    events += [*receive_gradient, *backward, *send_gradient] * warm_up
    return events


def optimizer_step(arguments: AicbArguments) -> list[AicbEvent]:
    """Return the gradients' reduction and, with a distributed optimizer, the gather.

    Gradients have 4 bytes, parameters 2 (GM:380-440).
    """
    replicas, stages = arguments.data_parallel, arguments.pipeline_model_parallel
    parameters = stage_parameters(arguments)
    gradients = 4 * parameters // stages
    if arguments.use_distributed_optimizer:
        weights = ELEMENT_SIZE * parameters // stages
        synchronise = [
            collective("reduce_scatter", "dp_group", replicas, gradients, "step"),
            collective("all_gather", "dp_group", replicas, weights, "step"),
        ]
    else:
        synchronise = [
            collective("all_reduce", "dp_group", replicas, gradients, "step.finish_grad_sync")
        ]
    return [
        *synchronise,
        tensor_parallel(arguments, "all_reduce", 0, "step._allreduce_layernorm_grads"),
        tensor_parallel(arguments, "all_reduce", 4, "step.check_for_nan"),
    ]


def stage_parameters(arguments: AicbArguments) -> int:
    """Return the parameters that the step counts on one tensor-parallel rank.

    Those of the text workload with sequence parallelism (layer norms and LM head included) and
    one more vector per layer, ``post_attention_layernorm_bias`` (MM:523). DeepSeek's shared
    experts, which the text workload counts twice, count once here.
    """
    layers = layers_of_stage(replace(arguments, enable_sequence_parallel=True))
    total, _ = total_parameters(layers)
    if arguments.frame == DEEPSEEK and arguments.n_shared_expert > 0:
        linear = (Role.COLUMN, Role.ROW)
        mlps = [it.parameters for it in layers if it.block == "mlp" and it.role in linear]
        dense = min(arguments.n_dense_layers, arguments.layers_per_stage)
        total -= sum(mlps[2 * dense :])
    return total + arguments.layers_per_stage * arguments.hidden_size


def _start(arguments: AicbArguments, stage: int) -> Iterator[AicbEvent]:
    """Yield what Megatron's set-up sends (GM:42-118)."""
    replicas, stages = arguments.data_parallel, arguments.pipeline_model_parallel
    at = "init.model_setup"
    yield collective("all_reduce", "dp_group", replicas, WORD, at)
    for _ in range(3):
        yield collective("all_reduce", "dp_group", replicas, WORD, at)
        if stages > 1:
            yield collective("all_reduce", "pp_group", stages, WORD, at)
    yield collective("all_gather", "dp_group", replicas, 4 * WORD, at)
    yield tensor_parallel(arguments, "broadcast", 3 * WORD, at, source=0)
    if stages > 1 and stages - 1 in (stage, arguments.pp_rank):
        split = arguments.tensor_model_parallel_size
        words = 4 * (arguments.padded_vocab_size // split) * arguments.hidden_size
        for elements in (words, arguments.seq_length * arguments.hidden_size):
            yield tensor_parallel(arguments, "all_reduce", elements * ELEMENT_SIZE, at)
    yield collective("all_gather", "dp_group", replicas, 8 * WORD, at)


def _inputs(arguments: AicbArguments) -> list[AicbEvent]:
    """Return the broadcasts of a micro-batch's sizes and tokens."""
    tokens = arguments.seq_length * arguments.micro_batch
    return [
        tensor_parallel(arguments, "broadcast", size, "forward_step", source=0)
        for size in (5 * WORD, WORD * (arguments.world_size + tokens))
    ]


def _loss(arguments: AicbArguments) -> list[AicbEvent]:
    """Return the all-reduces of the loss, in 4 bytes per token."""
    size = 4 * arguments.micro_batch * arguments.seq_length
    stage = "forward_step._VocabParallelCrossEntropy"
    average = "forward_step.average_losses_across_data_parallel_group"
    return [
        *[tensor_parallel(arguments, "all_reduce", size, stage)] * LOSSES,
        collective("all_reduce", "dp_group", arguments.data_parallel, 4, average),
    ]


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
    size = arguments.activation_size
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
