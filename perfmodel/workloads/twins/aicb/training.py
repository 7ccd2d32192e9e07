"""AICB's training files for SimAI in both dialects, byte for byte.

What AICB takes from an AIOB computation file: times by the name of a row.

AICB applies one file to every shape: the times do not change with the model's sizes.

Rows of AICB's training files, as its two dialects have them in common.

A row is a tuple in the order of `perfmodel.workloads.formats.aicb_text.COLUMNS` without placeholder
and process time, which AICB never changes.

AICB's training file without ``--aiob_enable``: unit times, and other communication.

The dialect differs from the one with computation times in more than its times: both
directions all-reduce, also on one device; the experts' parameters are counted with all
others; recomputation doubles a size; every micro-batch ends with ``embedding_norm``.

Source: aicb 23eec3c4, ``workload_generate``, lines 579-838 of
``workload_generator/SimAI_training_workload_generator.py``.

AICB's training file for SimAI, byte for byte, quirks included.

Source: aicb 23eec3c4, ``workload_generate_aiob`` and ``dump_file`` of
``workload_generator/SimAI_training_workload_generator.py``; lines are of that file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.formats.aicb_text import (
    LARGEST,
    NO_COLLECTIVE,
    TRANSFORMER,
    AicbHeader,
    AicbPhase,
    AicbWorkload,
    format_aicb_text,
)
from perfmodel.workloads.formats.aiob import AiobFile
from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.parameters import (
    FP8_FACTOR,
    Layer,
    Role,
    layers_of_stage,
    total_parameters,
)

NANOSECONDS = 1000  # per µs, the unit of the file
# Layers of DeepSeek's attention: timed apart where the file has a section for them, else 0,
# which AICB then takes for their time.
TIMED_APART = (
    "attention_linear_q_lora",
    "attention_q_column",
    "attention_linear_kv_lora",
    "attention_kv_column",
    "attention_o_row",
)
NO_TIME = 1  # [ns] where the file has nothing; AICB takes it for "not found", too


def training_times(aiob: AiobFile, recompute_activations: bool = False) -> dict[str, int]:
    """Return the times of a training file by AICB's own keys.

    Parameters
    ----------
    aiob : AiobFile
    recompute_activations : bool
        Counts flash attention twice, in the forward and in the backward pass.

    Returns
    -------
    dict of str to int
        Times [ns]: ``attention_forward`` … ``grad_backward``, every section that belongs to
        none of them, and the layers of `TIMED_APART`.

    Notes
    -----
    aicb 23eec3c4, utils/utils.py:373-440 (``extract_averages``): sums are rounded half to
    even, the backward pass takes as long as the forward pass, and of the optimizer's
    section ``param_time`` "forward" is the minimum and "backward" the average.
    """
    attention = mlp = 0.0
    gradient_forward = gradient_backward = 0
    others: dict[str, int] = {}
    apart = dict.fromkeys(TIMED_APART, 0)
    for name, time in aiob.sections.items():
        average = float(time.average) * NANOSECONDS
        if name == "param_time":
            gradient_forward = round(float(time.minimum) * NANOSECONDS)
            gradient_backward = round(average)
            continue
        if "atten" in name or name == "layernorm":
            attention += average * 2 if recompute_activations and "flash" in name else average
        elif "mlp" in name or name == "layernorm2":
            mlp += average
        else:
            others[name] = round(average)
        if name in apart:
            apart[name] = round(average)
    return {
        "attention_forward": round(attention),
        "attention_backward": round(attention),
        "mlp_forward": round(mlp),
        "mlp_backward": round(mlp),
        "grad_forward": gradient_forward,
        "grad_backward": gradient_backward,
        **others,
        **apart,
    }


def time_of(times: dict[str, int], stage: str, direction: str = "") -> int:
    """Return the time of a stage as AICB looks it up, `NO_TIME` where there is none.

    Source: ``_get_aiob_compute_time``, lines 56-83 of the training generator. The LM head
    ("final") takes attention's time, never the measured ``logit_time``.
    """
    if stage in times:
        return times[stage]
    if stage == "embedding":
        key = "Emb"
    elif stage == "final":
        key = f"attention_{direction}"
    else:
        key = f"{stage}_{direction}"
    return times.get(key, NO_TIME)


PLACEHOLDER = -1
PROCESS_TIME = 100  # [ns]
UNIT = 1  # [ns] AICB's default_compute_time
ELEMENT = 2  # [B] of a parameter or an activation
GRADIENT = 4  # [B] of a gradient
# Rows that a file may have: its columns and its text take about 1.5 GB then.
LARGEST_FILE = 1_000_000

# A phase's time [ns], collective and size [B].
Phase = tuple[int, str, int]
Row = tuple[str, Phase, Phase, Phase]


def quiet(time: int = UNIT) -> Phase:
    """Return a phase that communicates nothing."""
    return time, NO_COLLECTIVE, 0


def expert_gradient_rows(arguments: AicbArguments, expert_parameters: int) -> list[Row]:
    """Return the rows of the experts' gradients: also for dense models (lines 259-268)."""
    if arguments.expert_model_parallel_size == arguments.data_parallel:
        return []
    gather, scatter = ELEMENT * expert_parameters, GRADIENT * expert_parameters
    return [
        ("moe_grad_norm1", quiet(), quiet(), (UNIT, "ALLGATHER_DP_EP", gather)),
        ("moe_grad_norm2", quiet(), quiet(), (UNIT, "REDUCESCATTER_DP_EP", scatter)),
    ]


def layer_norm_row(parameters: int) -> Row:
    """Return the row that reduces all parameters, not the layer norms' (line 229)."""
    return ("layernorm", quiet(), (UNIT, "ALLREDUCE", ELEMENT * parameters), quiet())


def expert_rows(
    arguments: AicbArguments, name: str, forward_time: int, backward_time: int, always: bool
) -> list[Row]:
    """Return the five rows of a layer of experts (lines 419-487).

    `always` keeps collectives of groups of one device, as the dialect without AIOB does.
    """
    tensor, expert = arguments.tensor_model_parallel_size, arguments.expert_model_parallel_size
    if not arguments.moe_enable:
        raise StrategyError("AICB needs --moe_enable for experts with --enable_sequence_parallel")
    routed = arguments.activation_size * arguments.moe_router_topk
    part = routed // tensor
    dispatch = int(part * FP8_FACTOR) if arguments.frame == "DeepSeek" else part
    counts = ELEMENT * expert * arguments.num_experts * tensor
    across_experts = always or expert > 1
    across_tensor = always or tensor > 1
    exchange = "ALLTOALL_EP" if across_experts else NO_COLLECTIVE
    gather = "ALLGATHER" if across_tensor else NO_COLLECTIVE
    scatter = "REDUCESCATTER" if across_tensor else NO_COLLECTIVE
    preprocess = "ALLGATHER" if across_experts or across_tensor else NO_COLLECTIVE
    return [
        (name, (forward_time, preprocess, counts), quiet(backward_time), quiet()),
        (name, (UNIT, exchange, dispatch), (UNIT, exchange, part), quiet()),
        (name, (UNIT, gather, routed), (UNIT, scatter, routed), quiet()),
        (name, (UNIT, scatter, routed), (UNIT, gather, routed), quiet()),
        (name, (UNIT, exchange, part), (UNIT, exchange, part), quiet()),
    ]


def last_rows(arguments: AicbArguments) -> list[Row]:
    """Return the rows of loss and optimizer, after all micro-batches (lines 547-577)."""
    loss = 4 * arguments.seq_length * arguments.micro_batch
    sizes = {f"cross_entropy{i}": loss for i in (1, 2, 3)}
    sizes |= {f"optimizer{i}": 4 for i in (1, 2, 3, 4)}
    return [
        (name, (0, "ALLREDUCE", size), quiet(0), quiet(0)) for name, size in sizes.items()
    ]  # fmt: skip


def without_idle_sizes(rows: Sequence[Row]) -> list[Row]:
    """Return rows whose forward and backward size is 0 where nothing is communicated."""

    def cleared(phase: Phase) -> Phase:
        return quiet(phase[0]) if phase[1] == NO_COLLECTIVE else phase

    return [(name, cleared(first), cleared(second), third) for name, first, second, third in rows]


def workload_of_rows(
    arguments: AicbArguments,
    head: Sequence[Row],
    first: Sequence[Row],
    following: Sequence[Row],
    tail: Sequence[Row],
) -> AicbWorkload:
    """Return the workload with its micro-batches written out.

    Parameters
    ----------
    arguments : AicbArguments
    head, tail : sequence of Row
        Before and after the micro-batches.
    first, following : sequence of Row
        The first micro-batch, and each of the others.

    Raises
    ------
    StrategyError
        More rows than `LARGEST_FILE`, or a number that no file can hold.
    """
    repeats = arguments.micro_batches
    count = len(head) + len(tail) + repeats * len(following)
    if count > LARGEST_FILE:
        raise StrategyError(
            f"{repeats} micro-batches of {len(following)} rows are {count} rows; "
            f"at most {LARGEST_FILE} are written"
        )
    parts = [list(head), list(first) if repeats else [], list(following), list(tail)]
    copies = (1, 1, max(repeats - 1, 0), 1)

    def column(values: list[list[Any]], kind: Any) -> NDArray[Any]:
        array = np.concatenate(
            [np.tile(np.array(part, kind), n) for part, n in zip(values, copies, strict=True)]
        )
        array.setflags(write=False)
        return array

    def phase(index: int) -> AicbPhase:
        time, collective, size = ([[row[index][i] for row in part] for part in parts]
                                  for i in range(3))  # fmt: skip
        return AicbPhase(
            column(time, np.int64), column(collective, np.str_), column(size, np.int64)
        )

    _check_numbers([row for part in parts for row in part])
    constant = {value: column([[value] * len(part) for part in parts], np.int64)
                for value in (PLACEHOLDER, PROCESS_TIME)}  # fmt: skip
    names = column([[row[0] for row in part] for part in parts], np.str_)
    return AicbWorkload(
        _header(arguments),
        names,
        constant[PLACEHOLDER],
        phase(1),
        phase(2),
        phase(3),
        constant[PROCESS_TIME],
    )


def _check_numbers(rows: Sequence[Row]) -> None:
    """Refuse times and sizes beyond the file's integers."""
    for name, *phases in rows:
        for time, collective, size in phases:
            if max(time, size) > LARGEST:
                raise StrategyError(
                    f"row {name}: {max(time, size)} ({collective}) is more than SimAI can read"
                )


def _header(arguments: AicbArguments) -> AicbHeader:
    """Return the header (lines 841-862).

    ``vpp`` is the number of layers of a stage; ``pp_comm`` becomes a Python float with
    sequence parallelism.
    """
    message: int | float = 0
    if arguments.pipeline_model_parallel != 1:
        message = arguments.activation_size
        if message > LARGEST:
            raise StrategyError(f"an activation of {message} B is more than SimAI can read")
        if arguments.enable_sequence_parallel:
            message /= arguments.tensor_model_parallel_size
    entries = {
        "model_parallel_NPU_group": arguments.tensor_model_parallel_size,
        "ep": arguments.expert_model_parallel_size,
        "pp": arguments.pipeline_model_parallel,
        "vpp": arguments.layers_per_stage,
        "ga": arguments.micro_batches,
        "all_gpus": arguments.world_size,
        "checkpoints": 0,
        "checkpoint_initiates": 0,
        "pp_comm": message,
    }
    return AicbHeader(TRANSFORMER, entries)


def workload_without_aiob(arguments: AicbArguments) -> AicbWorkload:
    """Return the workload that AICB writes without computation times.

    Raises
    ------
    StrategyError
        Arguments that AICB fails at, such as DeepSeek's with sequence parallelism.
    """
    layers = layers_of_stage(arguments)
    parameters, experts = total_parameters(layers)
    gather, scatter = ELEMENT * parameters, GRADIENT * parameters
    head: list[Row] = [
        ("grad_norm", (UNIT, "ALLGATHER", gather), quiet(), (UNIT, "REDUCESCATTER", scatter))
    ]
    if not arguments.enable_sequence_parallel:
        head.append(layer_norm_row(parameters))
    head += expert_gradient_rows(arguments, experts)
    # The vocabulary as given: elsewhere it is the padded one.
    embedding_size = ELEMENT * arguments.vocab_size * arguments.hidden_size
    micro_batch: list[Row] = []
    if arguments.micro_batches:  # else AICB looks at no layer, and fails at none
        micro_batch = [row for layer in layers for row in _layer_rows(layer, arguments)]
        micro_batch.append(
            ("embedding_norm", (UNIT, "ALLREDUCE", embedding_size), quiet(), quiet())
        )
    return workload_of_rows(arguments, head, micro_batch, micro_batch, last_rows(arguments))


def _layer_rows(layer: Layer, arguments: AicbArguments) -> list[Row]:
    """Return the rows of one layer in a micro-batch."""
    name, size = layer.name, arguments.activation_size
    twice = arguments.recompute_activations and layer.block == "attention"
    forward = 2 * size if twice else size
    if not arguments.enable_sequence_parallel:
        return [(name, (UNIT, "ALLREDUCE", forward), (UNIT, "ALLREDUCE", size), quiet())]
    if layer.role == Role.EMBEDDING:
        idle = (UNIT, NO_COLLECTIVE, size)
        return [(name, idle, idle, quiet())]
    if layer.role == Role.WHOLE:
        # AICB looks for a time here and has none: AttributeError at lines 59 and 670.
        raise StrategyError(
            "AICB cannot write DeepSeek's attention without computation times: "
            "give --aiob_enable and --comp_filepath, or leave --enable_sequence_parallel out"
        )
    if layer.role == Role.ROW:
        idle = (UNIT, NO_COLLECTIVE, size)
        return [(name, (UNIT, "REDUCESCATTER", forward), idle, quiet())]
    if layer.role == Role.COLUMN:
        return [(name, (UNIT, "ALLGATHER", forward), quiet(), quiet())]
    if layer.role == Role.EXPERTS:
        return expert_rows(arguments, name, UNIT, UNIT, always=True)
    return []  # layer norms


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
        rows than `LARGEST_FILE`.
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
        without_idle_sizes(part)
        for part in (_head(arguments, times), first, following, last_rows(arguments))
    ]
    return workload_of_rows(arguments, *cleared)


def training_text(arguments: AicbArguments, computation: AiobFile | None = None) -> str:
    """Return the text of AICB's training file; arguments and errors of `training_workload`."""
    return format_aicb_text(training_workload(arguments, computation))


def _head(arguments: AicbArguments, times: dict[str, int]) -> list[Row]:
    """Return the rows before the micro-batches (lines 184-268)."""
    parameters, experts = total_parameters(layers_of_stage(arguments))
    gather = ELEMENT * (parameters - experts)
    scatter = GRADIENT * (parameters - experts)
    optimizer = time_of(times, "grad", "forward") + time_of(times, "grad", "backward")
    head: list[Row] = [
        ("grad_gather", quiet(), quiet(), (UNIT, "ALLGATHER", gather)),
        ("grad_param_comm", quiet(), quiet(), (UNIT, "REDUCESCATTER", scatter)),
        ("grad_param_compute", quiet(), quiet(optimizer), quiet()),
    ]
    if not arguments.enable_sequence_parallel:
        head.append(layer_norm_row(parameters))
    collective = "ALLREDUCE" if arguments.tensor_model_parallel_size > 1 else NO_COLLECTIVE
    size = arguments.activation_size
    head.append(("embedding_grads", quiet(), (UNIT, collective, size), quiet()))
    return head + expert_gradient_rows(arguments, experts)


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
            result += expert_rows(arguments, layer.name, forward, backward, always=False)
        else:
            result.append(_layer_row(arguments, layer, forward, backward))
    return result, backward


def _embedding_row(arguments: AicbArguments, name: str, forward: int, stale: int) -> Row:
    """Return the embedding's row (lines 300 and 502)."""
    collective = "ALLREDUCE" if arguments.tensor_model_parallel_size > 1 else NO_COLLECTIVE
    size = arguments.activation_size
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
    size = arguments.activation_size
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
