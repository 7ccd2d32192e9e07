"""AICB's CSV workload of DeepSpeed: ZeRO stages 1, 2 and 3, byte for byte.

Stages 1 and 2 (`partitioned_optimizer`) keep whole parameters: gradients are reduced in
buckets as the backward pass fills them, parameters are gathered after the step. Stage 3 is in
`perfmodel.workloads.twins.aicb.deepspeed_stage3`, the model in
`perfmodel.workloads.twins.aicb.deepspeed_model`.

What AICB's files show and DeepSpeed does not do, kept: gradients have 2 bytes; a bucket
smaller than the first tensor leaves an empty all-reduce; buckets go on over micro-batches, so
gradients are reduced once per micro-batch; the initial barrier bears the size of the last
tensor; a tensor that begins where a rank's part ends has a slice of 0 bytes there.

Source: aliyun/aicb 23eec3c4, ``workload_generator/generate_deepspeed_stage1_2_workload.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from perfmodel.workloads.twins.aicb.deepspeed_model import (
    Tensor,
    backward_products,
    forward_products,
    llama_tensors,
)
from perfmodel.workloads.twins.aicb.deepspeed_stage3 import partitioned_parameters

Slice = tuple[int, int, int]  # owner, first element, element after the last


def deepspeed_csv(arguments: AicbArguments) -> str:
    """Write the workload that AICB's DeepSpeed generators write.

    Parameters
    ----------
    arguments : AicbArguments

    Returns
    -------
    str
        Text of the CSV file.

    Raises
    ------
    StrategyError
        As of `deepspeed_events`.
    """
    return format_aicb_csv(deepspeed_events(arguments))


def deepspeed_events(arguments: AicbArguments) -> list[AicbEvent]:
    """Return the rows of `deepspeed_csv`.

    Raises
    ------
    StrategyError
        Pipeline stages (AICB would write an iteration without passes); automatic mixed
        precision in stages 1 and 2 (AICB stops); a bucket of no elements; a bucket over two
        micro-batches of a single owner; more rows than may be written.
    """
    stage = zero_stage(arguments)
    _check(arguments, stage)
    if stage == 3:
        return partitioned_parameters(arguments, llama_tensors(arguments))
    return partitioned_optimizer(arguments, llama_tensors(arguments), stage)


def file_name(arguments: AicbArguments) -> str:
    """Return the name that AICB gives the file."""
    return csv_file_name(arguments, f"deepspeed_stage{zero_stage(arguments)}")


def zero_stage(arguments: AicbArguments) -> int:
    """Return the ZeRO stage that AICB writes.

    Its generator of stage 3 always writes stage 3; that of stages 1 and 2 writes stage 2
    unless ``--stage=1`` is given.
    """
    if arguments.module == "generate_deepspeed_stage3_workload":
        return 3
    if arguments.module == "generate_deepspeed_stage1_2_workload":
        return 1 if arguments.stage == 1 else 2
    return arguments.stage


def partitioned_optimizer(
    arguments: AicbArguments, tensors: Sequence[Tensor], stage: int
) -> list[AicbEvent]:
    """Return the rows of ZeRO stage 1 or 2.

    Parameters
    ----------
    arguments : AicbArguments
    tensors : sequence of Tensor
        The model's parameters in the order of the forward pass.
    stage : int
        1 or 2. In stage 2, contiguous gradients are reduced to their owners only.

    Returns
    -------
    list of AicbEvent
    """
    replicas = arguments.data_parallel
    owned = stage == 2 and arguments.contiguous_gradients
    slices = owned_slices(tensors, replicas) if owned else []
    forward_of = {t: forward_products(arguments, t) for t in set(tensors)}
    backward_of = {t: backward_products(arguments, t, "backward.computation") for t in forward_of}
    forward = [event for tensor in tensors for event in forward_of[tensor]]
    backward = [(i, t.elements, backward_of[t]) for i, t in enumerate(tensors)][::-1]

    events = [_everywhere("broadcast", replicas, tensor.size, "init") for tensor in tensors]
    events.append(AicbEvent("barrier", "all", replicas, tensors[-1].size, "init.__init__"))
    events.append(ITERATION_END)
    bucket: list[int] = []  # tensors whose gradients wait, in the order they came
    held = 0  # their elements
    for _ in range(arguments.epoch_num):
        for _ in range(arguments.micro_batches):
            events += forward
            for index, elements, products in backward:
                if elements + held > arguments.reduce_bucket_size:
                    events += _reduce(bucket, held, slices, replicas, "backward")
                    bucket, held = [], 0
                bucket.append(index)
                held += elements
                events += products
        events += _reduce(bucket, held, slices, replicas, "step")
        bucket, held = [], 0
        events.append(_everywhere("all_reduce", replicas, 1, "step.has_overflow"))
        events += _gather_shards(arguments, sum(tensor.elements for tensor in tensors))
        events.append(ITERATION_END)
    return events


def owned_slices(tensors: Sequence[Tensor], replicas: int) -> list[tuple[Slice, ...]]:
    """Cut the flat buffer of all parameters into one part per rank, for ZeRO-2.

    Parameters
    ----------
    tensors : sequence of Tensor
    replicas : int

    Returns
    -------
    list of tuple of (int, int, int)
        For each tensor its slices: owner, first element, element after the last.

    Notes
    -----
    generate_deepspeed_stage1_2_workload.py:180-217. A part has ``ceil(elements / replicas)``
    elements.
    """
    total = sum(tensor.elements for tensor in tensors)
    part = -(-total // replicas)
    owner, begin = 0, 0
    slices = []
    for tensor in tensors:
        end = begin + tensor.elements
        own = []
        while (part_end := (owner + 1) * part) < end:
            own.append((owner, begin, part_end))
            begin = part_end
            owner += 1
        slices.append((*own, (owner, begin, end)))
        begin = end
    return slices


def _reduce(
    bucket: Sequence[int],
    held: int,
    slices: Sequence[tuple[Slice, ...]],
    replicas: int,
    phase: str,
) -> Iterator[AicbEvent]:
    """Yield the reductions of a bucket: one for all, or with slices one per run of an owner."""
    if not slices:
        yield _everywhere("all_reduce", replicas, held * ELEMENT_SIZE, f"{phase}.allreduce_bucket")
        return
    runs: list[list[int]] = []
    for index in reversed(bucket):
        for owner, begin, end in slices[index]:
            if runs and runs[-1][0] == owner:
                runs[-1][2] = end
            else:
                runs.append([owner, begin, end])
    for owner, begin, end in runs:
        if end < begin:
            raise StrategyError(
                "--contiguous_gradients: a bucket holds the end of one micro-batch and the "
                "beginning of the next for the same owner, where AICB writes a negative size: "
                "take a smaller --reduce_bucket_size or more replicas"
            )
        size = (end - begin) * ELEMENT_SIZE
        yield AicbEvent(
            "reduce", "dp_group", replicas, size, f"{phase}.average_tensor", destination=owner
        )


def _gather_shards(arguments: AicbArguments, elements: int) -> Iterator[AicbEvent]:
    """Yield the all-gathers of the updated parameters, each filled up to whole ranks.

    generate_deepspeed_stage1_2_workload.py:147-175; the last shard takes the remainder.
    """
    replicas = arguments.data_parallel
    shards = max(elements // arguments.allgather_bucket_size, 1)
    shard = elements // shards
    for index in range(shards):
        held = elements - index * shard if index == shards - 1 else shard
        size = -(-held // replicas) * replicas * ELEMENT_SIZE
        yield _everywhere("all_gather", replicas, size, "step.all_gather_dp_groups")


def _everywhere(kind: str, replicas: int, size: int, stage: str) -> AicbEvent:
    """Return a collective of all data-parallel ranks."""
    return collective(kind, "dp_group", replicas, size, stage)


def _check(arguments: AicbArguments, stage: int) -> None:
    """Refuse what AICB cannot write, and files without bound."""
    if arguments.pipeline_model_parallel > 1:
        raise StrategyError(
            f"--pipeline_model_parallel={arguments.pipeline_model_parallel}: AICB's DeepSpeed "
            "workload has no pipeline; 1 is needed"
        )
    if stage != 3 and arguments.amp_enabled:
        raise StrategyError(f"--amp_enabled with ZeRO stage {stage}: AICB itself stops here")
    if stage != 3 and arguments.allgather_bucket_size < 1:
        raise StrategyError("--allgather_bucket_size=0: at least 1 element is needed")
    check_rows(_most_rows(arguments, stage), arguments)


def _most_rows(arguments: AicbArguments, stage: int) -> int:
    """Return how many rows there are at most."""
    tensors = 9 * arguments.num_layers + 3
    passes = arguments.epoch_num * arguments.micro_batches
    rows_of_a_pass = tensors * (5 if arguments.computes else 2)
    rows = 2 * tensors + passes * rows_of_a_pass + arguments.epoch_num * tensors
    if stage == 3:
        return rows
    if stage == 2 and arguments.contiguous_gradients:
        rows += (passes + 1) * arguments.data_parallel
    hidden, inner = arguments.hidden_size, arguments.feed_forward_size
    layer = hidden * (4 * hidden + 3 * inner + 2)
    elements = arguments.num_layers * layer + (2 * arguments.vocab_size + 1) * hidden
    return rows + arguments.epoch_num * (elements // arguments.allgather_bucket_size)
