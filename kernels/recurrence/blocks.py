"""One kernel of a chain: equal blocks that walk over chunks, on the compute units of a device.

A *block* (thread block, workgroup) does `steps` steps one after the other: each multiplies a few
small tiles, works on their elements, and moves some bytes through the port of its unit. Blocks
that are parallel over chunks have one step; a block that carries a state has one per chunk.

What bounds a kernel, each a roofline of its own:

- matrix products on tiles. Matrix units take their operands from the unit's shared memory, and
  tiles of 64 x 64 are too small to hide that: `product_time`;
- the general cores: decays, masks, conversions, and the elementwise scan of Mamba-1;
- the port of a unit to the shared cache, and the device memory;
- the chain of a block: steps wait for each other, and for loads that nothing can fetch ahead.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from perfmodel.kernels._jit import jit
from perfmodel.kernels.stream import StreamDevice, hit_share

COMPUTE_BOUND = 0
VECTOR_BOUND = 1
MEMORY_BOUND = 2
LATENCY_BOUND = 3

SHARED_BYTES_PER_CLOCK = 128.0
"""Bytes that the shared memory of a compute unit hands out per clock: 32 banks of 4 B on every
NVIDIA GPU since Volta (CUDA C++ programming guide, "Shared memory"), and the LDS of CDNA (CDNA3
ISA guide). A fact of all GPUs in the profiles."""

READERS = 2.0
"""How often an operand is read from shared memory: the four matrix units of a compute unit form a
square over the tile of C, so each operand passes twice."""

TILE_STEP = 16.0
"""Sides of a product are padded to this: the shortest matrix instruction (m16n8k16)."""

WIDE = 2.0
"""Time of a product of single-precision operands (tf32), relative: half the rate, twice the
bytes."""

BLOCK_REGISTERS = 131072.0
"""Registers of a block: 128 threads of 255 fp32 numbers each [B]. As many blocks share a unit as
fit its register file."""

LEAST_RESIDENTS = 2.0
"""Blocks that share a unit at least: one loads while another works."""

ANY_RESIDENTS = 2.0**40
"""Where a compiler schedules a systolic array: it batches heads and chunks, and has the next
tiles on their way, so that nobody waits but for the first and for a state."""

STREAM_RESIDENTS = 16.0
"""Blocks of 128 threads that share the 2,048 threads of a unit, where few registers are needed
(CUDA C++ programming guide, compute capabilities 7.0 to 10.0)."""

CACHED = 0.5
"""Share of what fits the shared cache that is found there: inside a chain a kernel reads what the
one before wrote, and its own outputs need not reach the memory
(`perfmodel.compute.stream.DEFAULT_CACHED`)."""

ELEMENT_OPERATIONS = 2.0
"""Operations on the general cores per element that a block moves: conversion and scale."""

DECAY_OPERATIONS = 7.0
"""The same per pair of tokens of a chunk, apart from the exponential of their decay: difference,
scale to base 2, product with the decay and with the step size or scale, comparison and selection
of the mask, conversion (``chunk_fwd_kernel_o``, ``_chunk_scan_fwd_kernel``)."""


class RecurrenceDevice(NamedTuple):
    """One device at one precision, all floats in SI base units."""

    units: float  # compute units
    unit_rate: float  # matrix rate of one unit [FLOP/s]
    shared_bandwidth: float  # shared memory of one unit; 0: operands pass no such memory [B/s]
    array_side: float  # side of a systolic array; 0 for GPUs
    unit_vector_rate: float  # general cores of one unit, sustained [FLOP/s]
    special_operations: float  # vector operations that an exponential costs
    unit_bandwidth: float  # port of one unit to the shared cache [B/s]
    stream: StreamDevice  # memory, cache, launches
    portable_bandwidth: float  # memory, under kernels in a portable language [B/s]
    exchange_latency: float  # a block's threads hand each other a tile [s]
    residents: float  # blocks of `BLOCK_REGISTERS` that share a unit
    stream_residents: float  # blocks of few registers that do
    overlap_loss: float  # share of the shorter of compute and memory time that is not hidden
    element_bytes: float  # an activation [B]


class Block(NamedTuple):
    """What every block of a kernel does, all floats."""

    number: float  # of blocks
    steps: float  # of a block, one after the other
    product: float  # matrix products of a step, on one unit [s]
    operations: float  # on the general cores, of a step [FLOP]
    moved: float  # bytes of a step through the port of the unit [B]
    exchanges: float  # of tiles between the threads of a block, in a step
    waits: float  # loads of a step that cannot be asked for ahead
    residents: float  # blocks that share a unit
    bandwidth: float  # of the device memory, under such blocks [B/s]


class Cost(NamedTuple):
    """A kernel or a chain of kernels: times add up, by what they are spent on [s]."""

    compute: float
    vector: float
    memory: float
    latency: float
    traffic: float  # from and to the device memory [B]


@jit
def both(one, other):
    """Return the cost of two kernels, one after the other."""
    return Cost(
        one.compute + other.compute,
        one.vector + other.vector,
        one.memory + other.memory,
        one.latency + other.latency,
        one.traffic + other.traffic,
    )


@jit
def product_time(device, m, n, k):
    """Time of a product of tiles ``C[m,n] += A[m,k] B[k,n]`` on one unit [s].

    Parameters
    ----------
    device : RecurrenceDevice
    m, n, k : float
        Sides [elements].

    Notes
    -----
    ``max(2 m n k / unit_rate, READERS (m + n) k bytes / shared_bandwidth)``: with 128 B per clock
    a 64 x 64 tile reaches half of an H100's matrix rate, a quarter of a B200's. A systolic array
    holds one operand and pads its sides instead.
    """
    if device.array_side > 0.0:
        side = device.array_side
        return 2.0 * m * math.ceil(n / side) * math.ceil(k / side) * side * side / device.unit_rate
    m = math.ceil(m / TILE_STEP) * TILE_STEP
    n = math.ceil(n / TILE_STEP) * TILE_STEP
    k = math.ceil(k / TILE_STEP) * TILE_STEP
    time = 2.0 * m * n * k / device.unit_rate
    if device.shared_bandwidth > 0.0:
        loaded = READERS * (m + n) * k * device.element_bytes
        time = max(time, loaded / device.shared_bandwidth)
    return time


@jit
def memory_time(device, traffic, bandwidth):
    """Time of the traffic of one kernel [s], with what the shared cache still holds."""
    hits = CACHED * traffic * hit_share(device.stream, traffic)
    time = (traffic - hits) / bandwidth + hits / device.stream.cache_bandwidth
    return max(time, traffic / device.stream.cache_bandwidth)


@jit
def kernel_cost(device, block, traffic):
    """Cost of one kernel of equal blocks.

    Parameters
    ----------
    device : RecurrenceDevice
    block : Block
    traffic : float
        Bytes from and to the device memory, every byte once [B].

    Returns
    -------
    Cost
        All of the body belongs to what bounds it; the launch is latency, and so is a body in which
        units wait or lie idle for more than half of the time.

    Notes
    -----
    With ``b`` blocks on ``U`` units that hold ``r`` each, and ``T`` steps::

        compute = ceil(b / U) T products
        vector  = ceil(b / U) T operations / rate
        memory  = max(traffic / bandwidth, ceil(b / U) T moved / port)
        step    = max(products + operations / rate + exchanges t_exchange + waits t_load,
                      moved / port), and the sum of both where T = 1: nothing is fetched ahead
        latency = ceil(b / (U r)) (t_load + T step)
        time    = launch + longest + overlap_loss (shorter of compute and memory)
    """
    rounds = math.ceil(block.number / device.units)
    waves = math.ceil(block.number / (device.units * block.residents))
    operations = block.operations / device.unit_vector_rate
    port = block.moved / device.unit_bandwidth
    compute = rounds * block.steps * block.product
    vector = rounds * block.steps * operations
    memory = max(memory_time(device, traffic, block.bandwidth), rounds * block.steps * port)
    step = block.product + operations + block.exchanges * device.exchange_latency
    step += block.waits * device.stream.round_trip_latency
    step = max(step, port) if block.steps > 1.0 else step + port
    latency = waves * (device.stream.round_trip_latency + block.steps * step)
    longest = max(compute, vector, memory, latency)
    body = longest + device.overlap_loss * min(max(compute, vector), memory)
    launch = device.stream.launch_latency
    busy = longest
    if longest == latency:  # unless the units have work for more than half of it
        full = block.number / device.units * block.steps
        compute, vector = full * block.product, full * operations
        memory = max(memory_time(device, traffic, block.bandwidth), full * port)
        busy = max(compute, vector, memory)
        if 2.0 * busy < latency:
            return Cost(0.0, 0.0, 0.0, launch + body, traffic)
    if busy == memory:
        return Cost(0.0, 0.0, body, launch, traffic)
    if busy == compute:
        return Cost(body, 0.0, 0.0, launch, traffic)
    return Cost(0.0, body, 0.0, launch, traffic)


@jit
def stream_cost(device, traffic, operations, launches):
    """Cost of elementwise kernels that only read, do little and write.

    Parameters
    ----------
    device : RecurrenceDevice
    traffic : float
        Of all kernels together, every byte once [B].
    operations : float
        On the general cores [FLOP].
    launches : float
        Kernels that share the traffic evenly.
    """
    memory = launches * memory_time(device, traffic / launches, device.portable_bandwidth)
    vector = operations / (device.unit_vector_rate * device.units)
    latency = launches * device.stream.launch_latency
    least = launches * device.stream.round_trip_latency
    if max(memory, vector) < least:
        return Cost(0.0, 0.0, 0.0, latency + least, traffic)
    if vector > memory:
        return Cost(0.0, vector, 0.0, latency, traffic)
    return Cost(0.0, 0.0, memory, latency, traffic)
