"""AICB's CSV workload of Megatron: the events of one rank, byte for byte.

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
`perfmodel.workloads.twins.aicb.megatron_layers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.formats.aicb_tables import AicbEvent, format_aicb_csv
from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.csv_events import (
    ELEMENT_SIZE,
    ITERATION_END,
    check_rows,
    collective,
    csv_file_name,
)
from perfmodel.workloads.twins.aicb.megatron_layers import (
    activation_size,
    model_passes,
    tensor_parallel,
)
from perfmodel.workloads.twins.aicb.parameters import (
    DEEPSEEK,
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
        size = activation_size(arguments)
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
