"""AICB's training file for SimAI, byte for byte, quirks included.

Source: aicb 23eec3c4, ``workload_generate_aiob`` and ``dump_file`` of
``workload_generator/SimAI_training_workload_generator.py``; lines are of that file.
"""

from __future__ import annotations

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.formats.aicb_text import NO_COLLECTIVE, AicbWorkload, format_aicb_text
from perfmodel.workloads.formats.aiob import AiobFile
from perfmodel.workloads.twins.aicb import rows
from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.parameters import Layer, Role, layers_of_stage, total_parameters
from perfmodel.workloads.twins.aicb.row_times import NO_TIME, time_of, training_times
from perfmodel.workloads.twins.aicb.rows import UNIT, Row, quiet
from perfmodel.workloads.twins.aicb.without_aiob import workload_without_aiob


def file_name(arguments: AicbArguments) -> str:
    """Return the name that AICB gives the file (line 945), which SimAI takes apart again."""
    return (
        f"{arguments.gpu_type}-{arguments.model_name}-world_size{arguments.world_size}"
        f"-tp{arguments.tensor_model_parallel_size}-pp{arguments.pipeline_model_parallel}"
        f"-ep{arguments.expert_model_parallel_size}-gbs{arguments.global_batch}"
        f"-mbs{arguments.micro_batch}-seq{arguments.seq_length}-MOE-{arguments.moe_enable}"
        f"-GEMM-{arguments.moe_grouped_gemm}-flash_attn-{arguments.use_flash_attn}.txt"
    )


def training_workload(
    arguments: AicbArguments, computation: AiobFile | None = None
) -> AicbWorkload:
    """Return the workload that AICB writes for its arguments.

    Parameters
    ----------
    arguments : AicbArguments
    computation : AiobFile, optional
        What AICB reads as ``--comp_filepath``; used, and needed, where
        ``arguments.aiob_enable`` is set.

    Returns
    -------
    AicbWorkload

    Raises
    ------
    StrategyError
        Arguments that AICB fails at, no computation times where they are needed, or more
        rows than `perfmodel.workloads.twins.aicb.rows.LARGEST_FILE`.
    """
    if not arguments.aiob_enable:
        return workload_without_aiob(arguments)
    if computation is None:
        raise StrategyError(
            "--aiob_enable needs --comp_filepath=FILE: without it AICB measures on a GPU"
        )
    if computation.train_iter is None:
        raise StrategyError("--comp_filepath names an AIOB file of inference, not of training")
    times = training_times(computation, arguments.recompute_activations)
    # What the embedding's weight gradient takes: the last backward time that AICB assigned,
    # of the optimizer in the first micro-batch, of the last layer later (lines 312 and 511).
    optimizer = time_of(times, "grad", "backward")
    first: list[Row] = []
    following: list[Row] = []
    if arguments.micro_batches:  # else AICB looks at no layer, and fails at none
        first, last = _micro_batch(arguments, times, optimizer)
        following, _ = _micro_batch(arguments, times, last)
    cleared = [
        rows.without_idle_sizes(part)
        for part in (_head(arguments, times), first, following, rows.last_rows(arguments))
    ]
    return rows.workload_of_rows(arguments, *cleared)


def training_text(arguments: AicbArguments, computation: AiobFile | None = None) -> str:
    """Return the text of AICB's training file; arguments and errors of `training_workload`."""
    return format_aicb_text(training_workload(arguments, computation))


def _head(arguments: AicbArguments, times: dict[str, int]) -> list[Row]:
    """Return the rows before the micro-batches (lines 184-268)."""
    parameters, experts = total_parameters(layers_of_stage(arguments))
    gather = rows.ELEMENT * (parameters - experts)
    scatter = rows.GRADIENT * (parameters - experts)
    optimizer = time_of(times, "grad", "forward") + time_of(times, "grad", "backward")
    head: list[Row] = [
        ("grad_gather", quiet(), quiet(), (UNIT, "ALLGATHER", gather)),
        ("grad_param_comm", quiet(), quiet(), (UNIT, "REDUCESCATTER", scatter)),
        ("grad_param_compute", quiet(), quiet(optimizer), quiet()),
    ]
    if not arguments.enable_sequence_parallel:
        head.append(rows.layer_norm_row(parameters))
    collective = "ALLREDUCE" if arguments.tensor_model_parallel_size > 1 else NO_COLLECTIVE
    size = rows.activation_size(arguments)
    head.append(("embedding_grads", quiet(), (UNIT, collective, size), quiet()))
    return head + rows.expert_gradient_rows(arguments, experts)


def _micro_batch(
    arguments: AicbArguments, times: dict[str, int], backward: int
) -> tuple[list[Row], int]:
    """Return the rows of a micro-batch, and the last backward time assigned [ns].

    `backward` is the one that was assigned before.
    """
    result: list[Row] = []
    for layer in layers_of_stage(arguments):
        if layer.role == Role.EMBEDDING:
            time = time_of(times, "embedding")
            result.append(_embedding_row(arguments, layer.name, time, backward))
            continue
        if layer.role == Role.NORM:
            continue
        forward, backward = _layer_times(arguments, times, layer)
        if layer.role == Role.EXPERTS and arguments.enable_sequence_parallel:
            result += rows.expert_rows(arguments, layer.name, forward, backward, always=False)
        else:
            result.append(_layer_row(arguments, layer, forward, backward))
    return result, backward


def _embedding_row(arguments: AicbArguments, name: str, forward: int, stale: int) -> Row:
    """Return the embedding's row (lines 300 and 502)."""
    collective = "ALLREDUCE" if arguments.tensor_model_parallel_size > 1 else NO_COLLECTIVE
    size = rows.activation_size(arguments)
    return (name, (forward, collective, size), quiet(), quiet(stale))


def _layer_times(
    arguments: AicbArguments, times: dict[str, int], layer: Layer
) -> tuple[int, int]:  # fmt: skip
    """Return forward and backward time of a layer's row [ns]."""
    forward, backward = (time_of(times, layer.block, way) for way in ("forward", "backward"))
    own = time_of(times, layer.name)
    if own != NO_TIME:
        forward = backward = own
    if not arguments.enable_sequence_parallel:
        return forward, backward  # recomputation's doubling is overwritten (line 497)
    if layer.role == Role.EXPERTS:
        return forward, backward
    if arguments.recompute_activations and layer.block == "attention":
        forward *= 2
    if layer.role == Role.WHOLE:
        return forward, backward
    return int(forward / 2), int(backward / 2)  # half for the column's row, half for the row's


def _layer_row(arguments: AicbArguments, layer: Layer, forward: int, backward: int) -> Row:
    """Return the row of a layer that is neither embedding nor experts (lines 313-418, 526)."""
    name, gradient = layer.name, quiet(backward)
    if layer.role == Role.WHOLE or arguments.tensor_model_parallel_size == 1:
        return (name, quiet(forward), gradient, gradient)
    size = rows.activation_size(arguments)
    if not arguments.enable_sequence_parallel:
        return (name, (forward, "ALLREDUCE", size), gradient, gradient)
    if layer.role == Role.ROW:
        return (
            name,
            (forward, "REDUCESCATTER", size),
            (backward, "ALLGATHER", size),
            gradient,
        )
    return (name, (forward, "ALLGATHER", size), (backward, "REDUCESCATTER", 0), gradient)
