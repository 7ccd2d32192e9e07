"""Tables, result rows and argument groups of the closing pass (`perfmodel.kernels.step.close`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from perfmodel.kernels.variables import STEP_VARIABLES, row_numbers

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
        ("first_stage", np.float64),  # earliest stage of this composition,
        ("stages", np.float64),  # number of such stages,
        ("pair", np.int64),  # and row of the stage as far from the end as that one from the start
    ],
    align=True,
)


def blank_parts(keys: int, parts: int) -> np.recarray:
    """Return a part table of zeros, shape (keys, parts)."""
    return np.zeros((keys, parts), PART).view(np.recarray)


def blank_stages(rows: int) -> np.recarray:
    """Return stage sums of zeros, shape (rows,)."""
    return np.zeros(rows, STAGE).view(np.recarray)


ResultRows = row_numbers("ResultRows", STEP_VARIABLES)
"""Class of `ROW`; pickled by name."""
ROW = ResultRows(*range(len(STEP_VARIABLES)))
"""Which row of the result holds a variable, all in SI units."""

# Codes of places where state waits (`perfmodel.base.strategy_fields`).
HOST, NVME, STAGE_PLACE = 0, 1, 2

# What a pipeline schedule is to the closing pass: bits of ``schedule`` of `STRATEGY`.
GPIPE, ONE_F_ONE_B, INTERLEAVED = 1, 2, 4  # the closed form that it has, if any
CLOSED = GPIPE | ONE_F_ONE_B | INTERLEAVED
JOINED_ENDS = 8  # the first and the last chunk lie on one stage
TWO_COPIES = 16  # a second copy of the model runs from the last stage to the first
CLOSED_FORMS = {"": 0, "gpipe": GPIPE, "1f1b": ONE_F_ONE_B, "interleaved": INTERLEAVED}


def schedule_bits(closed_form: str, joins_ends: bool, copies: int) -> int:
    """Return ``schedule`` of `STRATEGY`, of facts of `perfmodel.base.pipelines.Schedule`."""
    found = CLOSED_FORMS[closed_form]
    return found | (JOINED_ENDS if joins_ends else 0) | (TWO_COPIES if copies > 1 else 0)


STRATEGY = np.dtype(
    [
        ("stage_key", np.int64),  # number of its pair of layer key and (pipeline, virtual) pair
        ("tensor_parallel", np.int64),
        ("context_parallel", np.int64),
        ("pipeline_parallel", np.int64),
        ("virtual_pipeline", np.int64),
        ("schedule", np.int64),  # of `schedule_bits`
        ("data_parallel", np.int64),
        ("zero_stage", np.int64),
        ("shard_group", np.int64),
        ("expert_parallel", np.int64),
        ("expert_tensor_parallel", np.int64),
        ("micro_batch_size", np.int64),
        ("sequence_length", np.int64),
        ("mapping", np.int64),
        ("padding", np.float64),  # a share, as what is offloaded
        ("offload_activations", np.float64),
        ("offload_optimizer", np.float64),
        ("offload_parameters", np.float64),
        ("offload_activations_to", np.int64),
        ("offload_optimizer_to", np.int64),
        ("offload_parameters_to", np.int64),
        # Its batches, which ascend: ``batch[first:behind]`` of all; and the number of its first
        # strategy, those of the others follow.
        ("first", np.int64),
        ("behind", np.int64),
        ("number", np.int64),
        # Rows of `Waits` of its batches, of which the last holds for all further ones; -1 where a
        # closed form holds.
        ("waits", np.int64),
        ("lines", np.int64),
    ],
    align=True,
)
"""A family: strategies that differ in nothing but the batch."""


KEY = np.dtype(
    [
        # Parameters that a stage with embedding and output keeps once (a tied table).
        ("shared_table", np.float64),
        # Those whose gradients both stages add up: all of them, or none where they are frozen.
        ("trained_table", np.float64),
        ("boundary_bytes", np.float64),  # hidden state sent to the next stage, per device [B]
        ("boundary_gather", np.float64),  # to gather what came in shares of tensor ranks [s]
        # Maxima that the ranks of a stage reduce after each pass of a chunk [B]; 0: none.
        ("scale_bytes", np.float64),
        ("weight_bytes", np.float64),  # of one parameter, low-precision copies included [B]
        ("flops_causal", np.float64),  # model FLOP per token
        ("flops_non_causal", np.float64),
        # Datasheet matrix rate at the strategy's precision [FLOP/s]; NaN where the device has none,
        # which makes everything of the strategy NaN.
        ("peak", np.float64),
    ],
    align=True,
)


class KeyTables(NamedTuple):
    """What depends on the layer key.

    Attributes
    ----------
    parts : record array of PART, shape (keys, parts)
        Seconds, FLOP, parameters and bytes per part and micro-batch.
    of : record array of KEY, shape (keys,)
    """

    parts: np.recarray
    of: np.recarray


STAGE_KEY = np.dtype(
    [
        ("layer_key", np.int64),
        ("first", np.int64),  # its rows of `Stages.sums`
        ("behind", np.int64),
        # Half-widths over all stages together [s].
        ("compute_width", np.float64),
        ("stream_width", np.float64),
        ("collective_width", np.float64),
        # Of pipelines with chunks of equal layers: `perfmodel.kernels.pipeline.closed.Ends` [s].
        ("forward", np.float64),
        ("backward", np.float64),
        ("first_forward", np.float64),
        ("first_backward", np.float64),
        ("last_forward", np.float64),
        ("last_backward", np.float64),
    ],
    align=True,
)


class Stages(NamedTuple):
    """Stages of every stage key: distinct compositions, summed over their parts.

    Attributes
    ----------
    of : record array of STAGE_KEY, shape (stage keys,)
    sums : record array of STAGE, shape (rows,)
        What one micro-batch takes on the stage.
    counts : float64, shape (rows, parts)
        How many of each part the stage holds.
    """

    of: np.recarray
    sums: np.recarray
    counts: np.ndarray


WAIT = np.dtype(
    [
        ("batches", np.int64),  # micro-batches
        ("makespan", np.float64),  # of a step's passes, without sends [s]
        ("with_sends", np.float64),  # the same with them [s]
        ("growth", np.float64),  # of both, for each further micro-batch [s]
        ("growth_with_sends", np.float64),
        ("heads", np.float64),  # micro-batches whose logits are kept at most, by their bytes
        ("alone", np.float64),  # share of the passes that run without a partner [1]
    ],
    align=True,
)


class Waits(NamedTuple):
    """What pipelines come to whose passes ran one by one, a row for each.

    Attributes
    ----------
    of : record array of WAIT, shape (n,)
    flight : float64, shape (n, distinct compositions)
        Micro-batches whose activations a stage of a composition keeps at most, by their bytes.
    """

    of: np.recarray
    flight: np.ndarray


def no_waits(rows: int = 0, compositions: int = 0) -> Waits:
    """Return `Waits` of zeros, for so many pipelines and compositions of stages."""
    return Waits(np.zeros(rows, WAIT).view(np.recarray), np.zeros((rows, compositions)))


MEMORY_SETTINGS = np.dtype(
    [
        (
            "master_bytes",
            np.float64,
        ),  # of optimizer_bytes: sharded parameters that are the master [B/parameter]
        ("persistent_gradients", np.bool_),  # main gradients are buffers that are there throughout
        ("beside_bytes", np.float64),  # gradients that stay beside the main ones [B/parameter]
        ("beside_with_zero", np.bool_),  # these are there with a sharded optimizer, too
        (
            "pass_bytes",
            np.float64,
        ),  # autograd's own, until a micro-batch has gone backward [B/parameter]
        ("gathers_flat", np.bool_),  # what ranks have updated is gathered through one buffer
        (
            "whole_in_pipeline",
            np.bool_,
        ),  # gradients of ZeRO 2 stay whole until a pipeline has drained
        (
            "unreduced_bytes",
            np.float64,
        ),  # a gradient ahead of the copy that is reduced [B/parameter]
        ("own_pool", np.bool_),  # reduced gradients come from a pool of a stream of their own
        (
            "receives_ahead",
            np.bool_,
        ),  # buffers of all micro-batches that a stage receives are there throughout
        ("ends_in_root", np.bool_),  # embedding and output are gathered for the whole step
        ("update_bytes", np.float64),  # temporaries of the update [B/parameter]
        (
            "idle_update_bytes",
            np.float64,
        ),  # those that the allocator holds beside the next step [B/parameter]
        (
            "layer_graphs",
            np.bool_,
        ),  # each layer is a graph, all of which share a private pool of the allocator
        (
            "communicator_bytes",
            np.float64,
        ),  # of one group of ranks in the communication library [B]
        ("high", np.float64),  # 90th percentile of the memory over the projected one [1]
    ],
    align=True,
)
"""What the software keeps, and when."""

WIDTHS = np.dtype(
    [
        ("middle_from", np.float64),  # first value of a regime [B]
        ("large_from", np.float64),
        ("small", np.float64),  # relative half-widths of operations [1]
        ("middle", np.float64),
        ("large", np.float64),
    ],
    align=True,
)

SETTINGS = np.dtype(
    [
        ("devices", np.int64),
        ("domain", np.int64),  # devices that one scale-up network joins
        ("gradient_bytes", np.float64),  # stored main gradient [B/parameter]
        ("reduce_bytes", np.float64),  # gradient on the wire [B/parameter]
        ("copies_bytes", np.float64),  # the same among copies of shards (HSDP) [B/parameter]
        ("gather_bytes", np.float64),  # parameter on the wire [B/parameter]
        (
            "gather_copy_time",
            np.float64,
        ),  # to copy a gathered parameter out of its buffer [s/parameter]
        (
            "reduce_copy_time",
            np.float64,
        ),  # and a gradient into the one that is reduced [s/parameter]
        ("optimizer_bytes", np.float64),  # master copy and moments [B/parameter]
        ("bucket_bytes", np.float64),  # gradients per data-parallel bucket [B]
        (
            "bucket_bytes_per_rank",
            np.float64,
        ),  # and at least so many for every rank of the group [B]
        ("overlap_reduce", np.bool_),
        ("overlap_gather", np.bool_),
        ("overlap_update", np.bool_),  # the first chunk is gathered beside the update of the others
        (
            "owner_call",
            np.float64,
        ),  # to issue the broadcast of a rank's share; 0: one gather of all shares [s]
        ("overlap_copies", np.bool_),  # gradients among copies of shards (HSDP) beside backward
        ("reduces_whole", np.bool_),  # gradients are all-reduced with ZeRO 1
        ("overlap_pipeline", np.bool_),
        ("sums_experts", np.bool_),  # expert ranks hold equal adapters, whose gradients they add up
        ("pairs", np.bool_),  # exchanges of experts hide behind another micro-batch's passes
        ("tax_inside", np.float64),  # compute lost beside a collective inside a node [1]
        ("tax_outside", np.float64),  # the same between nodes [1]
        ("host_bandwidth", np.float64),  # of a device's link to its host, each way; 0: none [B/s]
        ("host_memory_bandwidth", np.float64),  # of the host's memory, per device [B/s]
        ("nvme_read", np.float64),  # of the host's drives, per device; 0: none [B/s]
        ("nvme_write", np.float64),
        ("overlap_nvme", np.bool_),  # drives work beside the host's update
        ("step_overhead", np.float64),  # host time per step that nothing hides [s]
        ("reserve_bytes", np.float64),  # context and libraries [B]
        (
            "fragmentation",
            np.float64,
        ),  # share of activations and buffers that the allocator cannot use [1]
        ("memory", MEMORY_SETTINGS),
        ("stream_widths", WIDTHS),
        ("collective_widths", WIDTHS),
        ("step_width", np.float64),  # relative half-width of what no kernel explains [1]
    ],
    align=True,
)
"""Numbers that hold for all strategies of one device."""


def settings_of(**values: Any) -> np.record:
    """Return a record of `SETTINGS`; all fields are needed, those of ``memory`` as a mapping."""
    values["memory"] = tuple(values["memory"][name] for name in MEMORY_SETTINGS.names or ())
    row = tuple(values[name] for name in SETTINGS.names or ())
    found: np.record = np.array([row], SETTINGS).view(np.recarray)[0]
    return found
