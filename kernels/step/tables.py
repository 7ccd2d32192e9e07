"""Tables, result rows and argument groups of the closing pass (`perfmodel.kernels.step.close`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit_inline

# What a part of the model costs per micro-batch, and what a stage of such parts does.
_SUMMED = [
    ("forward", np.float64),  # compute [s]
    ("backward", np.float64),
    ("recompute", np.float64),
    ("tensor_exposed", np.float64),  # communication that delays the step, and all of it [s]
    ("tensor_total", np.float64),
    ("context_exposed", np.float64),
    ("context_total", np.float64),
    ("expert_exposed", np.float64),
    ("expert_total", np.float64),
    ("host", np.float64),  # waiting for the host [s]
    ("flops", np.float64),  # matrix FLOP executed
    ("weights", np.float64),  # parameters that every data-parallel rank holds alike
    ("experts", np.float64),  # parameters of the routed experts that live here
    ("trained", np.float64),  # of both, what has gradients and an optimizer: all, or adapters;
    ("trained_experts", np.float64),  # those are counted in the bytes in which they are stored
    ("activations", np.float64),  # kept from forward to backward [B]
    ("working", np.float64),  # only while the part goes backward [B]; of a stage, the largest
    # From first to last kernel (compute, exposed, host), but for what keeps the adapters busy [s].
    ("forward_window", np.float64),
    ("backward_window", np.float64),  # the same of backward with its recomputation [s]
    ("logits", np.float64),  # kept until the output's backward, which follows at once [B]
    ("loss", np.float64),  # beside them while the loss goes forward and backward [B]
    ("loss_idle", np.float64),  # freed before, but in blocks that the loss cannot use [B]
    ("logits_held", np.float64),  # of those, what stays until the step has ended [B]
    # From first to last kernel of forward, and of backward what makes gradients of weights [s].
    ("forward_pass", np.float64),
    ("weight_pass", np.float64),
    ("offloadable", np.float64),  # of activations, what may wait elsewhere [B]
]
PART = np.dtype(
    [
        *_SUMMED,
        # Half-widths of the 10-90 % band of what the part adds to the step [s], one for each
        # of `perfmodel.operations.uncertainty.CLASSES`.
        ("gemm_width", np.float64),
        ("attention_width", np.float64),
        ("attention_backward_width", np.float64),
        ("moe_width", np.float64),
        ("recurrence_width", np.float64),
        ("sparse_width", np.float64),
        ("stream_width", np.float64),
        ("collective_width", np.float64),
    ],
    align=True,
)
STAGE = np.dtype(
    [
        *_SUMMED,
        # Parameters of the largest layer, of the output, and of embedding and output together.
        ("layer", np.float64),
        ("head", np.float64),
        ("ends", np.float64),
        ("layer_trained", np.float64),  # of the first and the last of these, what is trained
        ("ends_trained", np.float64),
        ("widest_part", np.float64),  # offloadable of the part that has most [B]
        ("busy", np.float64),  # compute, exposed communication and host waits [s]
        ("compute_width", np.float64),  # the classes ahead of streams, in quadrature [s]
        ("stream_width", np.float64),
        ("collective_width", np.float64),
    ],
    align=True,
)


def blank_parts(keys: int, parts: int) -> np.recarray:
    """Return a part table of zeros, shape (keys, parts)."""
    return np.zeros((keys, parts), PART).view(np.recarray)


def blank_stages(rows: int) -> np.recarray:
    """Return stage sums of zeros, shape (rows,)."""
    return np.zeros(rows, STAGE).view(np.recarray)


class ResultRows(NamedTuple):
    """Which row of the result holds a variable, all in SI units."""

    step_time: int
    step_time_low: int
    step_time_high: int
    forward_time: int
    backward_time: int
    recompute_time: int
    optimizer_time: int
    host_time: int
    tensor_parallel_exposed: int
    context_parallel_exposed: int
    expert_parallel_exposed: int
    pipeline_exposed: int
    data_parallel_exposed: int
    offload_exposed: int
    pipeline_bubble: int
    tensor_parallel_total: int
    context_parallel_total: int
    expert_parallel_total: int
    pipeline_total: int
    data_parallel_total: int
    tokens_per_second_per_device: int
    model_flops_utilization: int
    model_flops_utilization_non_causal: int
    hardware_flops_utilization: int
    memory_parameters: int
    memory_gradients: int
    memory_optimizer: int
    memory_activations: int
    memory_buffers: int
    memory_fragmentation: int
    memory_reserve: int
    memory_total: int
    memory_high: int
    memory_host: int
    memory_nvme: int


ROW = ResultRows(*range(len(ResultRows._fields)))

# Codes of places where state waits (`perfmodel.strategy.fields`).
HOST, NVME, STAGE_PLACE = 0, 1, 2

# Codes of `perfmodel.base.pipelines`.
GPIPE, ONE_F_ONE_B, INTERLEAVED = 0, 1, 2
ZB_V, DUALPIPE, HANAYO = 8, 11, 13


@jit_inline
def joins_ends(schedule):
    """Tell whether the first and the last chunk lie on one stage: chunks that go up and down."""
    return ZB_V <= schedule <= HANAYO and schedule != DUALPIPE


class Strategies(NamedTuple):
    """Columns of the strategies to close, all of shape (n,), or one of them.

    Int64, but for ``padding`` and what is offloaded, which are shares. ``stage_key`` numbers the
    distinct pairs of layer key and (pipeline, virtual) pair.
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
    padding: np.ndarray
    offload_activations: np.ndarray
    offload_optimizer: np.ndarray
    offload_parameters: np.ndarray
    offload_activations_to: np.ndarray
    offload_optimizer_to: np.ndarray
    offload_parameters_to: np.ndarray
    waits: np.ndarray  # row of `Waits`, -1 where a closed form holds


@jit_inline
def strategy_at(strategies, i):
    """Return one of the strategies."""
    return Strategies(
        strategies.stage_key[i],
        strategies.tensor[i],
        strategies.context[i],
        strategies.pipeline[i],
        strategies.virtual[i],
        strategies.schedule[i],
        strategies.data[i],
        strategies.zero[i],
        strategies.shard_group[i],
        strategies.expert[i],
        strategies.expert_tensor[i],
        strategies.micro_batch[i],
        strategies.global_batch[i],
        strategies.sequence[i],
        strategies.mapping[i],
        strategies.padding[i],
        strategies.offload_activations[i],
        strategies.offload_optimizer[i],
        strategies.offload_parameters[i],
        strategies.offload_activations_to[i],
        strategies.offload_optimizer_to[i],
        strategies.offload_parameters_to[i],
        strategies.waits[i],
    )


class KeyTables(NamedTuple):
    """What depends on the layer key.

    Attributes
    ----------
    parts : record array of PART, shape (keys, parts)
        Seconds, FLOP, parameters and bytes per part and micro-batch.
    shared_table : float64, shape (keys,)
        Parameters that a stage with embedding and output keeps once (a tied table).
    trained_table : float64, shape (keys,)
        Those of them whose gradients both stages add up: all, or none where they are frozen.
    boundary_bytes : float64, shape (keys,)
        Hidden state that a stage sends to the next, per device [B].
    boundary_gather : float64, shape (keys,)
        Time in which tensor ranks gather what came in shares [s].
    scale_bytes : float64, shape (keys,)
        Maxima that the ranks of a stage reduce after each pass of a chunk [B]; 0: none.
    weight_bytes : float64, shape (keys,)
        Bytes of one stored parameter, low-precision copies included [B].
    flops_causal, flops_non_causal : float64, shape (keys,)
        Model FLOP per token.
    peak : float64, shape (keys,)
        Datasheet matrix rate at the strategy's precision [FLOP/s]; NaN where the
        device has none, which makes everything of the strategy NaN.
    """

    parts: np.ndarray
    shared_table: np.ndarray
    trained_table: np.ndarray
    boundary_bytes: np.ndarray
    boundary_gather: np.ndarray
    scale_bytes: np.ndarray
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
    sums : record array of STAGE, shape (rows,)
        What one micro-batch takes on the stage.
    counts : float64, shape (rows, parts)
        How many of each part the stage holds.
    first_stage, stages : float64, shape (rows,)
        Earliest stage of this composition, and number of such stages.
    pair : int64, shape (rows,)
        Row of the stage that lies as far from the end as that earliest one from the start.
    widths : float64, shape (stage keys, 3)
        Half-widths of compute, streams and collectives over all stages together [s].
    ends : float64, shape (stage keys, 6)
        Of pipelines with chunks of equal layers: `perfmodel.kernels.pipeline.closed.Ends` [s].
    """

    layer_key: np.ndarray
    offset: np.ndarray
    sums: np.ndarray
    counts: np.ndarray
    first_stage: np.ndarray
    stages: np.ndarray
    pair: np.ndarray
    widths: np.ndarray
    ends: np.ndarray


class Waits(NamedTuple):
    """What pipelines come to whose passes ran one by one, a row for each.

    Attributes
    ----------
    makespan : float64, shape (n,)
        Of a step's passes, without sends [s].
    with_sends : float64, shape (n,)
        The same with them [s].
    flight : float64, shape (n, distinct compositions)
        Micro-batches whose activations a stage of a composition keeps at most, by their bytes.
    heads : float64, shape (n,)
        Micro-batches whose logits are kept at most, by their bytes.
    alone : float64, shape (n,)
        Share of the passes that run without a partner [1].
    """

    makespan: np.ndarray
    with_sends: np.ndarray
    flight: np.ndarray
    heads: np.ndarray
    alone: np.ndarray


def no_waits(rows: int = 0, compositions: int = 0) -> Waits:
    """Return `Waits` of zeros, for so many strategies and compositions of stages."""
    flight = np.zeros((rows, compositions))
    return Waits(np.zeros(rows), np.zeros(rows), flight, np.zeros(rows), np.zeros(rows))


class MemorySettings(NamedTuple):
    """What the software keeps, and when."""

    master_bytes: float  # of optimizer_bytes: sharded parameters that are the master [B/parameter]
    persistent_gradients: bool  # main gradients are buffers that are there throughout
    beside_bytes: float  # gradients that stay beside the main ones [B/parameter]
    beside_with_zero: bool  # these are there with a sharded optimizer, too
    pass_bytes: float  # autograd's own, until a micro-batch has gone backward [B/parameter]
    gathers_flat: bool  # what ranks have updated is gathered through one buffer
    whole_in_pipeline: bool  # gradients of ZeRO 2 stay whole until a pipeline has drained
    unreduced_bytes: float  # a gradient ahead of the copy that is reduced [B/parameter]
    own_pool: bool  # reduced gradients come from a pool of a stream of their own
    receives_ahead: bool  # buffers of all micro-batches that a stage receives are there throughout
    ends_in_root: bool  # embedding and output are gathered for the whole step
    update_bytes: float  # temporaries of the update [B/parameter]
    idle_update_bytes: float  # those that the allocator holds beside the next step [B/parameter]
    layer_graphs: bool  # each layer is a graph, all of which share a private pool of the allocator
    communicator_bytes: float  # of one group of ranks in the communication library [B]
    high: float  # 90th percentile of the memory over the projected one [1]


class Settings(NamedTuple):
    """Numbers that hold for all strategies of one device."""

    devices: int
    domain: int  # devices that one scale-up network joins
    gradient_bytes: float  # stored main gradient [B/parameter]
    reduce_bytes: float  # gradient on the wire [B/parameter]
    copies_bytes: float  # the same among copies of shards (HSDP) [B/parameter]
    gather_bytes: float  # parameter on the wire [B/parameter]
    gather_copy_time: float  # to copy a gathered parameter out of its buffer [s/parameter]
    reduce_copy_time: float  # and a gradient into the one that is reduced [s/parameter]
    optimizer_bytes: float  # master copy and moments [B/parameter]
    bucket_bytes: float  # gradients per data-parallel bucket [B]
    bucket_bytes_per_rank: float  # and at least so many for every rank of the group [B]
    overlap_reduce: bool
    overlap_gather: bool
    overlap_update: bool  # the first chunk is gathered beside the update of the others
    owner_call: float  # to issue the broadcast of a rank's share; 0: one gather of all shares [s]
    overlap_copies: bool  # gradients among copies of shards (HSDP) beside backward
    reduces_whole: bool  # gradients are all-reduced with ZeRO 1
    overlap_pipeline: bool
    sums_experts: bool  # expert ranks hold equal adapters, whose gradients they add up
    pairs: bool  # exchanges of experts hide behind another micro-batch's passes
    tax_inside: float  # compute lost beside a collective inside a node [1]
    tax_outside: float  # the same between nodes [1]
    host_bandwidth: float  # of a device's link to its host, each way; 0: none [B/s]
    host_memory_bandwidth: float  # of the host's memory, per device [B/s]
    nvme_read: float  # of the host's drives, per device; 0: none [B/s]
    nvme_write: float
    overlap_nvme: bool  # drives work beside the host's update
    step_overhead: float  # host time per step that nothing hides [s]
    reserve_bytes: float  # context and libraries [B]
    fragmentation: float  # share of activations and buffers that the allocator cannot use [1]
    memory: MemorySettings
    # Two limits [B], then the relative half-widths of small, middle and large operations.
    # Tuples: unlike arrays, they need no reference counting when settings are passed on.
    stream_widths: tuple[float, float, float, float, float]
    collective_widths: tuple[float, float, float, float, float]
    step_width: float  # relative half-width of what no kernel explains [1]
