"""Columns, rows and argument groups of the closing pass (`perfmodel.kernels.step.close`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Columns of the part table; an exposed time is followed by its total.
FORWARD = 0
BACKWARD = 1
RECOMPUTE = 2
TENSOR_EXPOSED = 3
TENSOR_TOTAL = 4
CONTEXT_EXPOSED = 5
CONTEXT_TOTAL = 6
EXPERT_EXPOSED = 7
EXPERT_TOTAL = 8
HOST = 9  # waiting for the host
FLOPS = 10
WEIGHTS = 11
EXPERTS = 12
ACTIVATIONS = 13
WORKING = 14
FORWARD_WINDOW = 15  # forward, from first to last kernel: compute, exposed, host
BACKWARD_WINDOW = 16  # the same of backward with its recomputation
LOGITS = 17  # bytes that the output keeps per micro-batch, until its backward follows
# Half-widths of the 10-90 % band of what a part adds to the step, one column for each of
# `perfmodel.operations.uncertainty.CLASSES` (a test compares).
FIRST_WIDTH = 18
STREAM_CLASS = 22
COLLECTIVE_CLASS = 23
PART_COLUMNS = 24

# Columns that a stage has in place of the half-widths of its parts.
LARGEST = 18
BUSY = 19
COMPUTE_WIDTH = 20  # the classes ahead of STREAM_CLASS, in quadrature
STREAM_WIDTH = 21
COLLECTIVE_WIDTH = 22
STAGE_COLUMNS = 23

# Rows of the result.
STEP_TIME = 0
STEP_TIME_LOW = 1
STEP_TIME_HIGH = 2
FORWARD_TIME = 3
BACKWARD_TIME = 4
RECOMPUTE_TIME = 5
OPTIMIZER_TIME = 6
HOST_TIME = 7
OUT_TENSOR_EXPOSED = 8
OUT_CONTEXT_EXPOSED = 9
OUT_EXPERT_EXPOSED = 10
OUT_PIPELINE_EXPOSED = 11
OUT_DATA_EXPOSED = 12
PIPELINE_BUBBLE = 13
OUT_TENSOR_TOTAL = 14
OUT_CONTEXT_TOTAL = 15
OUT_EXPERT_TOTAL = 16
OUT_PIPELINE_TOTAL = 17
OUT_DATA_TOTAL = 18
TOKENS_PER_SECOND = 19
UTILIZATION_CAUSAL = 20
UTILIZATION_NON_CAUSAL = 21
UTILIZATION_HARDWARE = 22
MEMORY_PARAMETERS = 23
MEMORY_GRADIENTS = 24
MEMORY_OPTIMIZER = 25
MEMORY_ACTIVATIONS = 26
MEMORY_BUFFERS = 27
MEMORY_RESERVE = 28
MEMORY_TOTAL = 29
RESULT_ROWS = 30

GPIPE = 0
INTERLEAVED = 2


class Strategies(NamedTuple):
    """Columns of the strategies to close, all int64 and of shape (n,).

    ``stage_key`` numbers the distinct pairs of layer key and (pipeline, virtual) pair.
    """

    stage_key: np.ndarray
    tensor: np.ndarray
    context: np.ndarray
    pipeline: np.ndarray
    virtual: np.ndarray
    schedule: np.ndarray
    data: np.ndarray
    zero: np.ndarray
    shard_group: np.ndarray
    expert: np.ndarray
    expert_tensor: np.ndarray
    micro_batch: np.ndarray
    global_batch: np.ndarray
    sequence: np.ndarray
    mapping: np.ndarray


class KeyTables(NamedTuple):
    """What depends on the layer key.

    Attributes
    ----------
    parts : float64, shape (keys, parts, PART_COLUMNS)
        Seconds, launches, FLOP, parameters and bytes per part and micro-batch.
    shared_table : float64, shape (keys,)
        Parameters that a stage with embedding and output keeps once (a tied table).
    boundary_bytes : float64, shape (keys,)
        Hidden state that a stage sends to the next, per device [B].
    weight_bytes : float64, shape (keys,)
        Bytes of one stored parameter, low-precision copies included [B].
    flops_causal, flops_non_causal : float64, shape (keys,)
        Model FLOP per token.
    peak : float64, shape (keys,)
        Datasheet matrix rate at the strategy's precision [FLOP/s]; NaN where the
        device has none, which makes every time of the strategy NaN.
    """

    parts: np.ndarray
    shared_table: np.ndarray
    boundary_bytes: np.ndarray
    weight_bytes: np.ndarray
    flops_causal: np.ndarray
    flops_non_causal: np.ndarray
    peak: np.ndarray


class Stages(NamedTuple):
    """Stages of every stage key: distinct compositions, summed over their parts.

    Attributes
    ----------
    layer_key : int64, shape (stage keys,)
        Layer key of each stage key.
    offset : int64, shape (stage keys + 1,)
        Rows of stage key j are ``offset[j]:offset[j + 1]``.
    sums : float64, shape (rows, STAGE_COLUMNS)
        Part-table columns summed over the parts of the stage (WORKING: the largest),
        LARGEST: parameters of its largest part, BUSY: compute, exposed
        communication and host waits of one micro-batch [s], and half-widths [s].
    counts : float64, shape (rows, parts)
        How many of each part the stage holds.
    first_stage, stages : float64, shape (rows,)
        Earliest stage of this composition, and number of such stages.
    widths : float64, shape (stage keys, 3)
        COMPUTE_WIDTH, STREAM_WIDTH and COLLECTIVE_WIDTH over all stages together [s].
    """

    layer_key: np.ndarray
    offset: np.ndarray
    sums: np.ndarray
    counts: np.ndarray
    first_stage: np.ndarray
    stages: np.ndarray
    widths: np.ndarray


class Settings(NamedTuple):
    """Numbers that hold for all strategies of one device."""

    devices: int
    domain: int  # devices that one scale-up network joins
    gradient_bytes: float  # stored main gradient [B/parameter]
    reduce_bytes: float  # gradient on the wire [B/parameter]
    gather_bytes: float  # parameter on the wire [B/parameter]
    optimizer_bytes: float  # master copy and moments [B/parameter]
    bucket_bytes: float  # gradients per data-parallel bucket [B]
    overlap_reduce: bool
    overlap_gather: bool
    overlap_pipeline: bool
    tax_inside: float  # compute lost beside a collective inside a node [1]
    tax_outside: float  # the same between nodes [1]
    step_overhead: float  # host time per step that nothing hides [s]
    reserve_bytes: float  # context and communicators [B]
    fragmentation: float  # share of live memory that the allocator cannot use [1]
    # Two limits [B], then the relative half-widths of small, middle and large operations.
    # Tuples: unlike arrays, they need no reference counting when settings are passed on.
    stream_widths: tuple[float, float, float, float, float]
    collective_widths: tuple[float, float, float, float, float]
    step_width: float  # relative half-width of what no kernel explains [1]
