"""Project the training step of every strategy of a grid on one device."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Column, Integers
from perfmodel.base.errors import StrategyError
from perfmodel.base.facts import Run
from perfmodel.base.precisions import FORMATS, PRECISIONS
from perfmodel.base.strategy_fields import FIELD_BY_NAME, OFFLOAD_TO
from perfmodel.hwprofiles.rows import kernel_widths, matrix_rates, memory_width, step_width
from perfmodel.model.spec import ModelSpec, run_of_model
from perfmodel.operations.operations import LayerKeys, machine_of
from perfmodel.operations.pricing import copy_time, kernel_tables, structure_of
from perfmodel.software.framework import Framework, as_run, product
from perfmodel.strategy.grid import StrategyGrid
from perfmodel.training.best_layout import BEST
from perfmodel.training.memory import shared_table
from perfmodel.training.part_table import (
    arrival_gathers,
    part_tables,
    scattered,
    sent_bytes,
    step_overhead,
)
from perfmodel.training.scheduled import Priced, pipeline_waits, waits_on_rows
from perfmodel.training.workload import Workload

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.kernels.collective.table import Network
    from perfmodel.kernels.step.tables import KeyTables, Stages, Waits
    from perfmodel.kernels.stream import StreamDevice

AT_ONCE = 64
"""Rows of hardware that are priced together, with at most so many layer keys and stages:"""
LAYER_KEYS, STAGES = 1 << 14, 1 << 15
CHUNK = 1 << 17
PLAIN_CHUNK = 1 << 13  # uncompiled: well below a second
PRODUCTS = 4 * 3  # of a layer, with an operand of each and a gradient
GATHER_BYTES = 2.0  # parameters travel in 16 bits
MASTER_BYTES = 4.0  # of a parameter in single precision


def project_grid(
    work: Workload,
    hardware: Hardware,
    framework: Framework,
    out: NDArray[Any],
    *,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Project every strategy of a workload on one device; see `project_rows`.

    Parameters
    ----------
    work : Workload
    hardware : Hardware
    framework : Framework
    out : ndarray of float64 or float32, shape (variables, strategies)
        Result, in the columns that the families' numbers name; rows as in
        `perfmodel.kernels.variables.STEP_VARIABLES`. Times are NaN where the device lacks the
        strategy's precision.
    threads : int, optional
        Threads over chunks of the strategy axis; default: one per core.
    progress : callable, optional
        Called with the number of strategies closed since the last call.
    """
    project_rows(work, [hardware], framework, out[None], threads=threads, progress=progress)


def project_rows(
    work: Workload,
    rows: Sequence[Hardware],
    framework: Framework,
    out: NDArray[Any],
    *,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Project all strategies on rows of hardware; `out` has shape (rows, variables, strategies).

    What does not depend on numbers of the hardware is worked out once for rows that are alike.
    """
    from perfmodel.kernels.plain import plain

    for numbers in alike_rows(work, rows, framework):
        for shares in shares_on_rows(work, [rows[number] for number in numbers], framework):
            for number, (share, waits) in zip(numbers, shares, strict=True):

                def close(
                    chunk: NDArray[Any],
                    own: Share = share,
                    waits: Waits = waits,
                    found: NDArray[Any] = out[number],
                ) -> None:
                    from perfmodel.kernels.step import close as kernel

                    kernel.close_strategies(
                        *map(plain, own.arguments(chunk, waits)), kernel.results_in(found)
                    )

                in_chunks(share, close, threads, progress)
        if len(rows) > MANY_ROWS:
            for number in numbers:
                rows[number].forget()


MANY_ROWS = 256
"""Rows of hardware that keep what was made of them, a few hundred kB each, for the next grid."""


def alike_rows(
    work: Workload, rows: Sequence[Hardware], framework: Framework
) -> Iterator[list[int]]:
    """Yield numbers of rows of hardware that differ in numbers only: `AT_ONCE` and fewer."""
    found: dict[Any, list[int]] = {}
    for number, row in enumerate(rows):
        kind = number if framework.stage_split == BEST else structure_of(row)
        found.setdefault(kind, []).append(number)
    for numbers in found.values():
        most = max(min(AT_ONCE, LAYER_KEYS // max(len(work.keys), 1)), 1)
        for start in range(0, len(numbers), most):
            yield numbers[start : start + most]


def shares_on_rows(
    work: Workload, rows: Sequence[Hardware], framework: Framework
) -> Iterator[Iterator[tuple[Share, Waits]]]:
    """Yield, for each `Habit`, the shares of a workload on rows that are alike, pipelines run."""
    for hardware in rows:
        check_host(work.grid, hardware)
    for own, share in habits_of(work, rows[0], framework):
        tables = key_tables_on_rows(share, rows, own)
        settings = [closing_settings(share, row, own) for row in rows]
        yield _closing(share, rows, tables, settings)


def _closing(
    work: Workload,
    rows: Sequence[Hardware],
    tables: Sequence[KeyTables],
    settings: Sequence[np.record],
) -> Iterator[tuple[Share, Waits]]:
    """Yield a share of each row, and what its pipelines come to, one after another."""
    devices = [kernel_tables(row) for row in rows]
    networks = [device.network for device in devices]
    waits = waits_on_rows(work, list(map(Priced, tables, settings, networks)))
    most = max(STAGES // max(work.row_layer_key.size, 1), 1)  # whose sums are held at a time
    for start in range(0, len(rows), most):
        some = slice(start, start + most)
        sums = work.stage_sums(tables[some])
        both = zip(tables[some], sums, settings[some], devices[some], strict=True)
        for (keys, stages, setting, device), own in zip(both, waits, strict=False):
            yield Share(work, keys, stages, setting, *device), own


class Share(NamedTuple):
    """Families of a workload in which the software does the same, and what closes them."""

    work: Workload
    keys: KeyTables
    stages: Stages
    settings: np.record
    device: StreamDevice
    network: Network

    def arguments(self, chunk: NDArray[Any], waits: Waits) -> tuple[Any, ...]:
        """Return the arguments of a closing kernel for some of the families."""
        from perfmodel.kernels.step.scheduled import shard_prices

        layers = self.work.stage_layer_key[chunk["stage_key"]]
        shards = shard_prices(chunk, layers, self.keys, self.settings, self.network)
        tables = self.keys, self.stages, waits, shards
        return chunk, self.work.families.batch, *tables, *self[3:]


def shares_of(work: Workload, hardware: Hardware, framework: Framework) -> Iterator[Share]:
    """Yield the shares of a workload on one device: what the software does may differ by precision.

    Raises
    ------
    StrategyError
        As of `check_host`.
    """
    check_host(work.grid, hardware)
    for own, share in habits_of(work, hardware, framework):
        keys = key_tables(share, hardware, own)
        settings = closing_settings(share, hardware, own)
        sums = share.stage_sums([keys])[0]
        yield Share(share, keys, sums, settings, *kernel_tables(hardware))


def habits_of(
    work: Workload, hardware: Hardware, framework: Framework
) -> Iterator[tuple[Framework, Workload]]:
    """Yield what the software does, which may differ by precision, and the part that it does so."""
    if not len(work.families):
        return
    runs = frameworks_of_runs(framework, work.model, hardware, work.grid["precision"])
    habits = {code: (it, gather_bytes(it, code)) for code, it in runs.items()}
    for habit in dict.fromkeys(habits.values()):
        own, share = habit[0], work
        if len(set(habits.values())) > 1:
            codes = [code for code, it in habits.items() if it == habit]
            rows = np.flatnonzero(np.isin(work.grid["precision"], codes))
            share = Workload(work.model, work.families.take(rows))
        yield own, laid_out(share, hardware, own)


def add_waits(share: Share, bounds: bool = False) -> Waits:
    """Run the pipelines of a share that need it, and say so in its strategies.

    Parameters
    ----------
    share : Share
    bounds : bool
        Lower bounds of what they take will do.
    """
    work, keys, _, settings, _, network = share
    return pipeline_waits(work, keys, settings, network, bounds)


def in_chunks(
    share: Share,
    close: Callable[[NDArray[Any]], None],
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    kind: str = "strategies",
) -> None:
    """Close the families of a share chunk by chunk; takes what `project_grid` takes.

    Parameters
    ----------
    close : callable
        Closes some of the strategies of its workload.
    kind : str
        Of work, as `perfmodel.kernels.work` knows it.
    """
    from perfmodel.kernels.work import compiling, expect, kernel_work

    strategies = share.work.strategies
    before = np.concatenate(([0], np.cumsum(share.work.families.size)))
    last = strategies.size

    def run(first: int, behind: int) -> None:
        count = int(before[behind] - before[first])
        with kernel_work(**{kind: count}):
            close(strategies[first:behind])
        if progress:
            progress(count)

    def end(first: int, most: int) -> int:
        behind = int(np.searchsorted(before, before[first] + most, "right")) - 1
        return max(behind, first + 1)

    first = 0
    while first < last:  # uncompiled, until compiling pays for the rest
        expect(**{kind: int(before[-1] - before[first])})
        if compiling():
            break
        behind = end(first, PLAIN_CHUNK)
        run(first, behind)
        first = behind
    chunks, most = [], CHUNK
    workers = threads or os.cpu_count() or 1
    if workers > 1:  # a few for each
        most = min(most, max(int(before[-1] - before[first]) // (4 * workers), PLAIN_CHUNK))
    while first < last:
        chunks.append((first, end(first, most)))
        first = chunks[-1][1]
    workers = min(workers, len(chunks))
    if workers <= 1:
        for chunk in chunks:
            run(*chunk)
        return
    run(*chunks[0])  # compiles once, before threads share the compiled code
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, *zip(*chunks[1:], strict=True)))


def laid_out(work: Workload, hardware: Hardware, framework: Framework) -> Workload:
    """Return a workload with its layers over stages as the software, or its user, lays them out."""
    if framework.stage_split == BEST:
        parts = key_tables(work, hardware, framework).parts
        return Workload(work.model, work.families, BEST, parts)
    if framework.stage_split != work.split:
        return Workload(work.model, work.families, framework.stage_split)
    return work


def check_host(grid: StrategyGrid, hardware: Hardware) -> None:
    """Refuse to leave anything to a host or to drives that a profile does not have.

    Raises
    ------
    StrategyError
        Names the field and the profile, and what would do.
    """
    host = hardware.system.host
    for name, where in OFFLOAD_TO.items():
        to = np.unique(grid[where][grid[name] > 0.0])
        places = [FIELD_BY_NAME[where].choices[code] for code in to]
        if not host.bandwidth > 0.0 and not set(places) <= {"stage"}:
            raise StrategyError(
                f"{name}: offload without a host: {hardware.name} states no link to one "
                "(system.host.bandwidth)"
            )
        if "nvme" in places and not host.nvme_capacity > 0.0:
            raise StrategyError(
                f"{where}: offload without NVMe: {hardware.name} states no drives "
                "(system.host.nvme_capacity); its host's memory is 'host'"
            )


def run_of(model: ModelSpec, hardware: Hardware, precision: str) -> Run:
    """Return what facts may depend on that hold for some runs only."""
    return run_of_model(model, precision, machine_of(hardware).domain, hardware.device.name)


def frameworks_of_runs(
    framework: Framework, model: ModelSpec, hardware: Hardware, precisions: Integers
) -> dict[int, Framework]:
    """Return what a framework does in each precision, by its code in `PRECISIONS`."""
    return {
        code: as_run(framework, run_of(model, hardware, PRECISIONS[code]))
        for code in np.unique(precisions).tolist()
    }


def framework_of_run(
    framework: Framework, model: ModelSpec, hardware: Hardware, grid: StrategyGrid
) -> Framework:
    """Return what a framework does in a grid of one precision."""
    return next(iter(frameworks_of_runs(framework, model, hardware, grid["precision"]).values()))


def key_tables(work: Workload, hardware: Hardware, framework: Framework) -> KeyTables:
    """Return what depends on the layer keys of a workload on one device."""
    return key_tables_on_rows(work, [hardware], framework)[0]


def key_tables_on_rows(
    work: Workload, rows: Sequence[Hardware], framework: Framework
) -> list[KeyTables]:
    """Return `key_tables` of rows of hardware that differ in numbers only."""
    from perfmodel.kernels.step.tables import KEY, KeyTables

    keys = work.keys
    wide_copy = 0.0 if framework.low_precision_parameters else 2.0
    cached = framework.fp8_library == "transformer-engine"  # others cast for every product
    weight_bytes = {
        name: wide_copy + copies * cached
        for name, copies in machine_of(rows[0]).cast_bytes().items()
    }
    shared = shared_table(work.model, keys, framework)
    parts = part_tables(work.model, keys, rows, framework, work.grid.devices, work.parts)
    of = np.zeros((len(rows), len(keys)), KEY).view(np.recarray)
    of.shared_table, of.trained_table = shared, shared * (work.model.adapters is None)
    of.boundary_bytes = sent_bytes(work.model, keys, framework)
    if scattered(keys, framework).any():
        of.boundary_gather = arrival_gathers(work.model, keys, rows, framework).time
    of.scale_bytes = scale_bytes(work.model, keys, framework)
    of.weight_bytes = keys.by_precision(weight_bytes, 2.0)
    of.flops_causal, of.flops_non_causal = work.flops
    of.peak = np.array([matrix_rates(row) for row in rows])[:, keys.columns["precision"]]
    return [KeyTables(*tables) for tables in zip(parts, of, strict=True)]


def scale_bytes(model: ModelSpec, keys: LayerKeys, framework: Framework) -> Column:
    """Return the maxima that ranks of a stage reduce after a pass of a chunk, shape (keys,) [B].

    One fp32 maximum for each operand and gradient of the four products of every layer; whatever
    the layers of a chunk, few enough for the latency of the network alone to count.
    """
    delayed = framework.scaling == "delayed" and framework.reduces_scales
    size = 4.0 * PRODUCTS * model.num_layers * delayed
    return keys.equals("precision", PRECISIONS.index("fp8")) * size


def gather_bytes(framework: Framework, precision: int) -> float:
    """Return the bytes of a parameter on the wire, for a code of `PRECISIONS`.

    16 bits, or fp8 where parameters are stored so (``fp8_param_gather``). Blocks with scales of
    their own along either axis cannot be turned on arrival: Megatron-Core gathers those of mxfp8
    in 16 bits, into the buffer of the gradients (``reuse_grad_buf_for_mxfp8_param_ag``). With
    nvfp4 parameters stay 16-bit (``fp4_param_gather`` is off).
    """
    if framework.low_precision_parameters and PRECISIONS[precision] == "fp8":
        return FORMATS["fp8"].bytes
    return GATHER_BYTES


def closing_settings(work: Workload, hardware: Hardware, framework: Framework) -> np.record:
    """Return what holds for all strategies of one device when they are closed."""
    from perfmodel.kernels.step.tables import settings_of

    gathered = gather_bytes(framework, int(work.grid["precision"][0]))
    copied = copy_time(hardware)
    return settings_of(
        devices=work.grid.devices,
        domain=machine_of(hardware).domain,
        gradient_bytes=framework.gradient_bytes,
        reduce_bytes=framework.gradient_reduce_bytes,
        copies_bytes=framework.gradient_copies_bytes or framework.gradient_reduce_bytes,
        gather_bytes=gathered,
        gather_copy_time=framework.gather_copy_bytes * copied * gathered / 2.0,  # narrower ones
        reduce_copy_time=framework.reduce_copy_bytes * copied,
        optimizer_bytes=framework.optimizer_bytes,
        bucket_bytes=framework.bucket_bytes,
        bucket_bytes_per_rank=framework.bucket_bytes_per_rank,
        overlap_reduce=framework.overlap_gradient_reduce,
        overlap_gather=framework.overlap_parameter_gather,
        overlap_update=framework.overlap_update_gather,
        owner_call=framework.broadcasts_parameters
        * hardware.calibrated("host", "collective_call_time"),
        overlap_copies=framework.overlap_gradient_copies,
        reduces_whole=framework.reduces_whole_gradients,
        overlap_pipeline=framework.overlap_pipeline,
        sums_experts=work.model.adapters is not None and work.model.adapters.share_experts,
        pairs=framework.overlap_expert_parallel,
        tax_inside=hardware.calibrated("network", "overlap_compute_tax"),
        tax_outside=hardware.calibrated("network", "overlap_compute_tax_scale_out"),
        host_bandwidth=hardware.system.host.bandwidth,
        host_memory_bandwidth=hardware.system.host.memory_bandwidth,
        nvme_read=hardware.system.host.nvme_read,
        nvme_write=hardware.system.host.nvme_write,
        overlap_nvme=framework.overlap_nvme,
        step_overhead=step_overhead(hardware, framework),
        reserve_bytes=hardware.calibrated("host", "reserve_bytes"),
        fragmentation=hardware.calibrated("host", "fragmentation"),
        memory=dict(
            master_bytes=MASTER_BYTES * framework.master_parameters,
            persistent_gradients=framework.persistent_gradients,
            beside_bytes=framework.beside_gradient_bytes,
            beside_with_zero=framework.beside_with_zero,
            pass_bytes=framework.pass_gradient_bytes,
            gathers_flat=framework.gathers_flat,
            whole_in_pipeline=framework.whole_gradients_in_pipeline,
            unreduced_bytes=gathered * (framework.reduce_copy_bytes > 0.0),
            own_pool=framework.gradients_in_own_pool,
            receives_ahead=framework.receives_ahead,
            ends_in_root=framework.gathers_ends_with_root,
            update_bytes=framework.update_bytes,
            idle_update_bytes=framework.idle_update_bytes,
            layer_graphs=framework.layer_graphs,
            communicator_bytes=framework.groups_per_axis
            * hardware.calibrated("host", "communicator_bytes"),
            high=math.exp(memory_width(hardware, product(framework))),
        ),
        stream_widths=kernel_widths(hardware, "stream"),
        collective_widths=kernel_widths(hardware, "collective"),
        step_width=step_width(hardware, work.experts, product(framework)),
    )
