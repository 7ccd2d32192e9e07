"""Rows of AICB's training files, as its two dialects have them in common.

A row is a tuple in the order of `perfmodel.workloads.formats.aicb_text.COLUMNS` without placeholder
and process time, which AICB never changes.
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
)
from perfmodel.workloads.twins.aicb.arguments import AicbArguments

PLACEHOLDER = -1
PROCESS_TIME = 100  # [ns]
UNIT = 1  # [ns] AICB's default_compute_time
ELEMENT = 2  # [B] of a parameter or an activation
GRADIENT = 4  # [B] of a gradient
FP8_FACTOR = (1 + 4 / 128) / 2  # FP8 and an FP32 scale per 128, over BF16 (MockedDeepSeek.py:28)
# Rows that a file may have: its columns and its text take about 1.5 GB then.
LARGEST_FILE = 1_000_000

# A phase's time [ns], collective and size [B].
Phase = tuple[int, str, int]
Row = tuple[str, Phase, Phase, Phase]


def quiet(time: int = UNIT) -> Phase:
    """Return a phase that communicates nothing."""
    return time, NO_COLLECTIVE, 0


def activation_size(arguments: AicbArguments) -> int:
    """Return the size of an activation [B]; never divided (training generator, line 167)."""
    return ELEMENT * arguments.micro_batch * arguments.seq_length * arguments.hidden_size


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
    routed = activation_size(arguments) * arguments.moe_router_topk
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
        message = activation_size(arguments)
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
