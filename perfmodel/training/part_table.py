"""Tables of what each part of a model costs per micro-batch, and of what stages send, by layer key.

The closing pass (`perfmodel.kernels.step.close`) only adds rows of these tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from perfmodel.base.columns import Column
from perfmodel.model.spec import ModelSpec
from perfmodel.operations.operation_list import FILL
from perfmodel.operations.operations import Communication, LayerKeys, machine_of
from perfmodel.operations.parts import Part, model_parts, part_operations
from perfmodel.operations.priced import Priced, column_of
from perfmodel.operations.pricing import Rows, price_on_rows
from perfmodel.operations.uncertainty import kernel_class
from perfmodel.software.framework import Framework
from perfmodel.training.memory import boundary_bytes, parameters_of, part_memory

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

ROUTED = "mlp.route"  # the operation behind which token counts are known
ROUTER_OPERATIONS = ("mlp.norm", "mlp.router", ROUTED)
BACKWARD_PHASES = ("backward_input", "backward_weight")


def slowest_of(devices: int, spread: float) -> float:
    """Expected slowdown of the slowest of a number of devices whose speeds spread.

    A step waits for its slowest device. The expected maximum of n normal deviates is
    ``Φ⁻¹((n - 0.375) / (n + 0.25))`` standard deviations (Blom 1958).

    Parameters
    ----------
    devices : int
        Number of devices n, >= 1.
    spread : float
        Standard deviation of the time of equal work, relative to its mean.

    Returns
    -------
    float
        Factor on the mean time, 1 for a single device.
    """
    return 1.0 + spread * NormalDist().inv_cdf((devices - 0.375) / (devices + 0.25))


def price_parts(
    model: ModelSpec,
    keys: LayerKeys,
    hardware: Hardware,
    framework: Framework,
    devices: int,
    parts: Sequence[Part] = (),
) -> list[tuple[Part, list[Priced]]]:
    """Price the operations of every part of a model, or of these, on one device."""
    found = price_parts_on_rows(model, keys, [hardware], framework, devices, parts)
    return [(part, [item.on_row(0) for item in priced]) for part, priced in found]


def price_parts_on_rows(
    model: ModelSpec,
    keys: LayerKeys,
    rows: Rows,
    framework: Framework,
    devices: int,
    parts: Sequence[Part] = (),
) -> list[tuple[Part, list[Priced]]]:
    """Price the operations of every part on rows of hardware, each of shape (rows, keys)."""
    machine, chosen = machine_of(rows[0]), parts or model_parts(model)
    spreads = [hardware.calibrated("host", "speed_spread") for hardware in rows]
    slowdowns = [slowest_of(devices, spread) for spread in spreads]
    listed = [part_operations(model, part, keys, framework, machine) for part in chosen]
    return list(zip(chosen, price_on_rows(rows, listed, keys, framework, slowdowns), strict=True))


def part_table(
    model: ModelSpec,
    keys: LayerKeys,
    hardware: Hardware,
    framework: Framework,
    devices: int,
    chosen: Sequence[Part] = (),
) -> np.recarray[Any, Any]:
    """Fill the table of one device, of all parts of a model or of those chosen.

    Returns
    -------
    record array of `perfmodel.kernels.step.tables.PART`, shape (keys, parts)
        Seconds, parameters, bytes or FLOP per micro-batch and device.
    """
    found: np.recarray[Any, Any]
    found = part_tables(model, keys, [hardware], framework, devices, chosen)[0]
    return found


def part_tables(
    model: ModelSpec,
    keys: LayerKeys,
    rows: Rows,
    framework: Framework,
    devices: int,
    chosen: Sequence[Part] = (),
) -> np.recarray[Any, Any]:
    """Fill the tables of rows of hardware, shape (rows, keys, parts)."""
    from perfmodel.kernels.step.tables import blank_parts

    parts = price_parts_on_rows(model, keys, rows, framework, devices, chosen)
    size = len(rows), len(keys), len(parts)
    table: Any = blank_parts(len(rows) * len(keys), len(parts)).reshape(size)
    domain, times = machine_of(rows[0]).domain, host_times_on_rows(rows, framework)
    for index, (part, priced) in enumerate(parts):
        row = table[:, :, index]
        for item in priced:
            _add_priced(row, item)
        device, window = pass_times(part, priced, keys, times, framework)
        row.host = (window - device).sum(axis=0)
        room = np.maximum(window - adapter_times(priced, keys, domain), 0.0)
        row.forward_window, row.backward_window = room
        row.forward_pass = window[0]
        row.weight_pass = weight_pass(priced, device[1], window[1])
        kept = part_memory(model, part, keys, framework)
        own = parameters_of(model, part, [item.operation for item in priced], kept)
        row.weights, row.experts = own.weights, own.experts
        row.trained, row.trained_experts = own.trained, own.trained_experts
        row.activations = kept.activations
        row.working = kept.working
        row.offloadable = kept.offloadable
        row.logits = kept.logits
        row.loss = kept.loss
        row.loss_idle = kept.loss_idle
        row.logits_held = kept.logits_held
    found: np.recarray[Any, Any] = table
    return found


def pass_times(
    part: Part,
    priced: Sequence[Priced],
    keys: LayerKeys,
    times: HostTimes,
    framework: Framework,
) -> tuple[Column, Column]:
    """Return the device's time, and from first to last kernel, of a part's two passes.

    Forward, then backward with its recomputation, shape (2, keys) or (2, rows, keys) each [s].
    """
    sorts = framework.sorts_chunks and not framework.graph_launch
    sorts = sorts and framework.expert_dispatch == "all_to_all"  # others have one permutation
    experts = max((mlp.experts for mlp in part.layer.mlps), default=0) if part.layer else 0
    times = times._replace(chunks=float(experts * sorts))
    device, host = np.zeros((2, 2, *_shape(priced, keys)))
    for item in priced:
        backward = int(item.operation.phase != "forward")
        device[backward] += item.exposed
        host[backward] += host_time(item, keys, times)
    # Each pass takes as long as the slower of the device and the host that feeds it.
    window = np.maximum(device, host)
    counts = framework.expert_counts_on_host and not framework.capacity_factor
    if counts and not framework.graph_launch:
        window[0] = np.maximum(window[0], drained_pass(priced, keys, times))
    return device, window


def _shape(priced: Sequence[Priced], keys: LayerKeys) -> tuple[int, ...]:
    """Return the shape of what a part's operations take: of rows of hardware, too."""
    return priced[0].time.shape if priced else (len(keys),)


def weight_pass(priced: Sequence[Priced], device: Column, window: Column) -> Column:
    """Return what of a part's backward pass only makes gradients of weights, shape (keys,) [s].

    Zero-bubble schedules put it off. Where the host sets the pace, its share of the device's time.

    Parameters
    ----------
    priced : sequence of Priced
    device, window : ndarray of float64, shape (keys,)
        Backward on the device, and from its first to its last kernel [s].
    """
    weights = np.zeros_like(device)
    for item in priced:
        operation = item.operation  # the stage ahead waits for communication of this phase
        if operation.phase == "backward_weight" and not isinstance(operation, Communication):
            weights = weights + item.exposed
    return weights * np.divide(window, device, out=np.ones_like(device), where=device > 0.0)


def adapter_times(priced: Sequence[Priced], keys: LayerKeys, domain: int) -> Column:
    """Return how long a part's communication keeps the adapters, shape (2, [rows,] keys) [s].

    That of groups beyond one scale-up network of `domain` devices. Where they are, the
    data-parallel group, of which they are part or which spans as many ranks, leaves it, too:
    what it sends finds no room in that time.
    """
    busy = np.zeros((2, *_shape(priced, keys)))
    for item in priced:
        operation = item.operation
        if isinstance(operation, Communication):
            members = column_of(operation.members, len(keys))
            leaves = (members > 1.0) & (members * operation.stride > domain)
            busy[int(operation.phase != "forward")] += item.time * leaves
    return busy


class HostTimes(NamedTuple):
    """What the host needs to issue work, or those of rows of hardware, shape (rows, 1) each [s]."""

    kernel: Column | float  # of an operation, with the operators around it
    collective: Column | float
    graphed: Column | float  # of an operation inside a captured graph
    scope: str  # what graphs hold: a framework's `graph_scope`, or "all"
    peer_message: Column | float = 0.0  # from host to host, where hosts check collectives
    launch: Column | float = 0.0  # of one operator
    chunks: float = 0.0  # of tokens that the host sorts one by one; how many


# How `torch.distributed` checks a collective (ProcessGroupWrapper.cpp, runCollectiveChecks): by a
# barrier and two gathers, of a fingerprint's shape and of the fingerprint. The barrier goes through
# the first rank, there and back, the gathers in rings: as many messages, in turn, for each further
# member of the group.
CHECK_CALLS = 3.0
CHECK_MESSAGES = 4.0

# Operators for each chunk of tokens that the host splits off and joins in another order, forward
# and backward; estimates. They are called from within others (views of `torch.split` and of the
# gradient of `torch.cat`), which takes about half of what one from Python does.
CHUNK_OPERATORS = (0.4, 0.6)
# Of each kernel of a router, at most: they are operators one after the other, in no module.
ROUTER_OPERATORS = 3.0
SORTED = ("mlp.sort", "mlp.unsort")


def host_times_of(hardware: Hardware, framework: Framework) -> HostTimes:
    """Return what a framework's host needs on a machine: little from a captured graph."""
    return HostTimes(
        framework.operators_per_kernel * hardware.calibrated("host", "launch_time"),
        hardware.calibrated("host", "collective_call_time"),
        hardware.calibrated("host", "graph_launch_time"),
        "all" if framework.graph_launch else framework.graph_scope,
        framework.checks_collectives * hardware.calibrated("host", "peer_message_time"),
        hardware.calibrated("host", "launch_time"),
    )


def step_overhead(hardware: Hardware, framework: Framework) -> float:
    """Return the host's time per step that nothing hides, with what is logged [s]."""
    found: float = hardware.calibrated("host", "step_overhead") + framework.logging_time
    return found


def host_times_on_rows(rows: Rows, framework: Framework) -> HostTimes:
    """Return what a framework's hosts need on rows of hardware."""
    times = [host_times_of(hardware, framework) for hardware in rows]
    columns: Any = [np.array(column)[:, None] for column in zip(*times, strict=True)]
    return HostTimes(*columns)._replace(scope=times[0].scope)


def graphed(name: str, scope: str) -> bool:
    """Tell whether a captured graph holds an operation.

    Graphs of the router hold what leads up to the dispatch, those of attention all that is no
    feed-forward block (Megatron-Core's ``cuda_graph_scope``: attn, moe_router, moe_preprocess).
    """
    if scope in ("all", "none"):
        return scope == "all"
    if name.startswith("mlp."):
        return "router" in scope and name in ROUTER_OPERATIONS
    return "attention" in scope


def host_time(item: Priced, keys: LayerKeys, times: HostTimes) -> Column:
    """Return the host's time to issue an operation, shape (keys,) [s].

    Products of experts that follow one another are operations of their own: around each,
    Transformer Engine's grouped linear layer splits, casts, wraps and saves tensors in Python
    (transformer_engine/pytorch/module/grouped_linear.py).
    """
    count = column_of(item.operation.count, len(keys))
    if isinstance(item.operation, Communication):
        price = times.collective + check_time(item.operation.members, times)
    else:
        price = times.kernel
        if item.operation.name in SORTED:
            backward = item.operation.phase != "forward"
            price = price + CHUNK_OPERATORS[backward] * times.chunks * times.launch
        if item.operation.name == ROUTED:
            price = np.minimum(price, ROUTER_OPERATORS * times.launch)
        if item.operation.name.endswith(FILL):
            price = times.launch  # inside the operator that allocates
        count = count * column_of(getattr(item.operation, "launches", 1.0), len(keys))
    if graphed(item.operation.name, times.scope):
        return count * times.graphed
    return count * price


def check_time(members: Column | float, times: HostTimes) -> Column | float:
    """Return what checking a collective of so many members costs each of their hosts [s]."""
    if not np.any(times.peer_message):
        return 0.0
    peers = np.maximum(np.asarray(members, np.float64) - 1.0, 0.0)
    calls = CHECK_CALLS * times.collective * ((peers > 0) & (np.asarray(times.peer_message) > 0.0))
    return calls + CHECK_MESSAGES * times.peer_message * peers


def drained_pass(priced: Sequence[Priced], keys: LayerKeys, times: HostTimes) -> Column:
    """Return the time of a forward pass in which the host waits for the device once.

    The host reads how many tokens each expert gets ahead of the dispatch. Until then the device
    has run dry: every operation behind it starts when the host has issued it and the one before
    has ended, to the same point of the next layer.

    Parameters
    ----------
    priced : sequence of Priced
        Of one part, in the order in which they run.
    keys : LayerKeys
    times : HostTimes

    Returns
    -------
    ndarray, shape (keys,)
        [s]; zero for a part without experts.
    """
    issued, done = np.zeros((2, *_shape(priced, keys)))
    forward = [item for item in priced if item.operation.phase == "forward"]
    ahead = [i for i, item in enumerate(forward) if item.operation.name == ROUTED]
    if not ahead:
        return done
    for item in forward[ahead[-1] + 1 :] + forward[: ahead[-1] + 1]:
        issued = issued + host_time(item, keys, times)
        done = np.maximum(done, issued) + item.exposed
    return done


def _add_priced(row: Any, item: Priced) -> None:
    """Add one operation's seconds, their half-width and its FLOP to a part's columns."""
    operation = item.operation
    row[f"{kernel_class(operation)}_width"] += item.half_width
    if isinstance(operation, Communication):
        row[f"{operation.axis}_exposed"] += item.exposed
        row[f"{operation.axis}_total"] += item.time
        return
    row.flops += item.flops
    compute = "backward" if operation.phase in BACKWARD_PHASES else operation.phase
    row[compute] += item.time


def scattered(keys: LayerKeys, framework: Framework) -> Column:
    """Return 1 where tensor ranks send shares of a hidden state that each of them holds."""
    return (framework.scatters_sends & (keys.tensor_parallel > 1) & (keys.sharded == 0)).astype(
        np.float64
    )


def sent_bytes(model: ModelSpec, keys: LayerKeys, framework: Framework) -> Column:
    """Return what a device sends to the next stage for a micro-batch, forward or backward [B]."""
    whole = boundary_bytes(model, keys)
    return np.where(scattered(keys, framework) > 0, whole / keys.tensor_parallel, whole)


def arrival_gather(
    model: ModelSpec, keys: LayerKeys, hardware: Hardware, framework: Framework
) -> Priced:
    """Price the gather that makes shares whole again, over the tensor ranks of a stage.

    Narayanan et al. 2021 (arXiv:2104.04473), section 4.1: adapters then carry every byte once and
    not t times, and the fast links of a node the rest.
    """
    return arrival_gathers(model, keys, [hardware], framework).on_row(0)


def arrival_gathers(model: ModelSpec, keys: LayerKeys, rows: Rows, framework: Framework) -> Priced:
    """Price it on rows of hardware, shape (rows, keys)."""
    operation = Communication(
        "pipeline.all_gather",
        "forward",
        "tensor",
        "all_gather",
        boundary_bytes(model, keys),
        keys.tensor_parallel,
        keys.tensor_stride,
        count=scattered(keys, framework),
    )
    ((found,),) = price_on_rows(rows, [[operation]], keys, framework, [1.0] * len(rows))
    return found
