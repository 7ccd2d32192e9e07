"""``perfmodel sweep``: every sensible strategy on one or more hardware profiles."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.group import EXIT_NOTHING_FITS
from perfmodel.cli.shared import options
from perfmodel.cli.shared.costs import cost_options, costs_header, print_costs, with_costs
from perfmodel.cli.shared.inputs import (
    assumed,
    assumed_text,
    of_hardware,
    software_options,
    written,
)
from perfmodel.cli.shared.models import reading_document, reading_words
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import (
    command_line,
    detail,
    heading,
    print_json,
    progress,
    remark,
    say,
)
from perfmodel.cli.shared.spaces import (
    check_strategies,
    lacks_precision,
    named,
    nothing_fits,
    nothing_possible,
    space_options,
)
from perfmodel.cli.shared.workers import block_options, check_one, run_blocks
from perfmodel.kernels.variables import RATE

if TYPE_CHECKING:
    from perfmodel.base.table import Table
    from perfmodel.hwprofiles import Hardware
    from perfmodel.sweeps.blocks import BlockSweep
    from perfmodel.sweeps.several import Problems
    from perfmodel.sweeps.stored import Tally
    from perfmodel.sweeps.sweep import Problem

SHOWN_ROWS = 20
# What results are shown apart by; devices have a table of their own.
APART = ("model", "framework", "hardware")


@click.command("sweep", **page("core", "sweep", "Project every sensible strategy."))
@space_options
@options.options_of("core.sweep", "keep_impossible")
@cost_options
@options.results_option("Write all results")
@options.options_of("core.sweep", "keep")
@options.options_of("core.sweep", "by", default=RATE)
@options.options_of("core.sweep", "pareto")
@options.options_of("shared.common", "top", help="Strategies to show.")
@options.options_of("core.sweep", "float64", "threads")
@block_options
@options.safe_option
@options.json_option
@options.verbosity_options
@click.pass_context
def sweep_command(
    ctx: click.Context,
    keep_impossible: bool,
    output: str | None,
    keep: str,
    by: str,
    pareto: str,
    top: int,
    float64: bool,
    threads: int | None,
    resume: bool,
    workers: int | None,
    scheduler: str | None,
    costs: Mapping[str, Any],
    safe: bool,
    as_json: bool,
    **stated: Any,
) -> None:
    """Project a training step for every sensible strategy of a model on some devices."""
    import numpy as np

    from perfmodel.store.cost import unknown_costs
    from perfmodel.store.files import check_results_path, stored_size
    from perfmodel.sweeps.stored import check_stored_path, tally

    found: Problems | BlockSweep
    asked, values = named(stated)
    asked |= {
        "keep_impossible": keep_impossible,
        "dtype": np.float64 if float64 else np.float32,
    }
    how: dict[str, Any] = {"threads": threads, "hardware_values": values}
    how |= {"safe": safe, "costs": costs}
    if keep == "best":
        if resume or workers or scheduler or keep_impossible:
            raise click.UsageError(
                "--keep best keeps a few in memory: leave out --resume, --workers, --scheduler "
                "and --keep-impossible"
            )
        output = output and check_results_path(output)
        found, table, counts = _best_alone(asked, how, output, (top, by, pareto))
    elif pareto:
        raise click.UsageError(
            "--pareto needs --keep best; 'perfmodel best FILE --pareto' reads one"
        )
    elif resume or workers or scheduler:
        if resume and output is None:
            raise click.UsageError("--resume needs -o, the file to go on with")
        if by != RATE:
            raise click.UsageError(
                "--by ranks what is in memory: leave it out, and rank the file with "
                "'perfmodel best FILE --by VARIABLE'"
            )
        check_one(workers, scheduler)
        output = output and str(check_stored_path(output))
        given = {"resume": resume, "workers": workers, "scheduler": scheduler}
        found = _counted(asked, how)
        summary = run_blocks(found, output, top, given)
        if summary is None:
            remark(f"{output} is complete; 'perfmodel best' ranks it")
            return
        table, counts = summary.table(), summary.counts
        _check_precision(table, counts)
        for line in unknown_costs(table) if costs else ():
            remark(f"note: {line}")
    else:
        output = output and check_results_path(output)
        found, table = _at_once(asked, how, output)
        _check_by(table, by)
        counts = tally(table)
    assumptions: dict[str, Any] = {}
    for problem in found.problems:
        assumptions |= assumed(stated["framework"], problem.grid, stated, options.SWEPT_FIELDS)
    fitting = dict(zip(table["hardware"].values.tolist(), counts.fitting, strict=True))
    if as_json:
        print_json(_document(asked, table, assumptions, found, fitting, (top, by), output))
    else:
        _print_summary(asked, table, assumptions, found, counts, (top, by))
    if output is not None:
        remark(f"\nwrote {output} ({stored_size(output) / 1e6:.1f} MB)")
    if not sum(counts.fitting):
        click.echo(_nothing_fits(table, counts, asked["axes"]), err=True)
        ctx.exit(EXIT_NOTHING_FITS)
    if not as_json:
        _suggest(stated, asked["hardware"][0], found.problems, table, output)


def _at_once(
    asked: Mapping[str, Any], how: Mapping[str, Any], output: str | None
) -> tuple[Problems, Table]:
    """Project all strategies in memory, and write them; return them and what was enumerated."""
    from perfmodel.store.files import save_results
    from perfmodel.store.results import decide_safely
    from perfmodel.sweeps.several import enumerate_problems
    from perfmodel.sweeps.stored import tally
    from perfmodel.sweeps.sweep import sweep_problems

    rows, devices = asked["hardware"], asked["devices"]
    start = time.perf_counter()
    found = enumerate_problems(**asked)
    _check_possible(found, asked)
    detail(f"enumerated {found.possible:,} strategies in {time.perf_counter() - start:.2f} s")
    start = time.perf_counter()
    with progress(found.possible * len(rows), "strategies") as advance:
        table = sweep_problems(
            found.problems,
            rows,
            dtype=asked["dtype"],
            threads=how["threads"],
            progress=advance,
            hardware_values=how["hardware_values"],
        )
    if len(devices) > 1:
        table.attrs["scaling"] = asked["scaling"]
    detail(f"projected {found.possible * len(rows):,} pairs in {time.perf_counter() - start:.2f} s")
    _check_precision(table, tally(table))
    if how["safe"]:
        decide_safely(table)
    table = with_costs(table, how["costs"])
    if output is not None:
        save_results(table, output)
    return found, table


def _best_alone(
    asked: Mapping[str, Any],
    how: Mapping[str, Any],
    output: str | None,
    wanted: tuple[int, str, str],
) -> tuple[Problems, Table, Tally]:
    """Find the best strategies without keeping others, and write them in double precision."""
    from perfmodel.store.files import save_results
    from perfmodel.sweeps.ranking import objectives_of, rank_problems
    from perfmodel.sweeps.several import enumerate_problems
    from perfmodel.sweeps.stored import ranked_tally

    rows, (top, by, pareto) = asked["hardware"], wanted
    names = [name.strip() for name in pareto.split(",")] if pareto else []
    objectives = objectives_of(top, by, names, safe=how["safe"])
    start = time.perf_counter()
    found = enumerate_problems(**asked, keep="best")
    _check_possible(found, asked)
    with progress(found.possible * len(rows), "strategies") as advance:
        ranked = rank_problems(
            found.problems,
            rows,
            objectives,
            threads=how["threads"],
            progress=advance,
            hardware_values=how["hardware_values"],
        )
    seconds = time.perf_counter() - start
    detail(f"ranked {found.possible * len(rows):,} pairs in {seconds:.2f} s")
    table, counts = ranked.table, ranked_tally(ranked)
    if len(asked["devices"]) > 1:
        table.attrs["scaling"] = asked["scaling"]
    _check_precision(table, counts)
    table = with_costs(table, how["costs"])
    if output is not None:
        save_results(table, output)
    return found, table, counts


def _counted(asked: Mapping[str, Any], how: Mapping[str, Any]) -> BlockSweep:
    """Count all strategies, which are built block by block."""
    from perfmodel.sweeps.blocks import block_sweep

    start = time.perf_counter()
    found = block_sweep(**asked, **how)
    _check_possible(found, asked)
    detail(f"counted {found.possible:,} strategies in {time.perf_counter() - start:.2f} s")
    return found


def _check_possible(found: Problems | BlockSweep, asked: Mapping[str, Any]) -> None:
    """Refuse to project nothing; say where nothing is possible."""
    if not found.possible:
        raise nothing_possible(asked, found.rejected)
    check_strategies(found.problems)
    for name, count in found.empty:
        remark(f"note: no strategy of {name} is possible on {count:,} devices")


def _check_precision(table: Table, counts: Tally) -> None:
    """Refuse results without a single step time, as no device has the precision."""
    lacking = _lacking(table, counts)
    if lacking and not any(counts.possible):
        raise lacks_precision(lacking)


def _check_by(table: Table, by: str) -> None:
    """Refuse, before anything is printed, what strategies cannot be ranked by."""
    from perfmodel.store.results import best

    best(table.isel(strategy=[0]), 1, by=by, fitting=False)


def _lacking(table: Table, counts: Tally) -> dict[str, int]:
    """Strategies whose precision each device lacks, where there are any."""
    names = table["hardware"].values.tolist()
    return {name: count for name, count in zip(names, counts.lacking, strict=True) if count}


def _nothing_fits(table: Table, counts: Tally, axes: Mapping[str, Any]) -> str:
    from perfmodel.base.units import format_gib

    capacity = table["memory_capacity"].values
    needs = [
        f"{name} needs {format_gib(least)} of {format_gib(has)}"
        for name, least, has in zip(
            table["hardware"].values.tolist()[:4], counts.least_memory, capacity, strict=False
        )
        if math.isfinite(least)
    ]
    return nothing_fits(needs, axes)


def _document(
    asked: Mapping[str, Any],
    table: Table,
    assumptions: Mapping[str, Any],
    found: Problems | BlockSweep,
    fitting: dict[str, int],
    shown: tuple[int, str],
    output: str | None,
) -> dict[str, Any]:
    from perfmodel.cli.shared.tables import results_header
    from perfmodel.store.results import best

    return (
        results_header(table)
        | costs_header(table)
        | reading_document(asked["models"])
        | {
            "assumed": assumptions,
            "hardware": table["hardware"].values.tolist(),
            "possible": found.possible,
            "impossible": dict(found.rejected),
            "fitting": fitting,
            "output": output,
            "strategies": _numbered(table, best(table, shown[0], by=shown[1])),
        }
        | _scaling_document(table)
    )


def _scaling_document(table: Table) -> dict[str, Any]:
    from perfmodel.store.results import scaling

    kind = table.attrs.get("scaling")
    return {"scaling": {"kind": kind, "rows": _numbered(table, scaling(table))}} if kind else {}


def _numbered(table: Table, rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Give rows the numbers of their strategies in the whole sweep, of which a table is a part."""
    for row in rows:
        row["strategy"] = int(table["strategy"].values[row["strategy"]])
    return rows


def _print_summary(
    asked: Mapping[str, Any],
    table: Table,
    assumptions: Mapping[str, Any],
    found: Problems | BlockSweep,
    counts: Tally,
    shown: tuple[int, str],
) -> None:
    from perfmodel.base.units import format_si
    from perfmodel.cli.shared.tables import print_scaling, print_strategies, variable_title
    from perfmodel.store.results import best, best_of_each, column, scaling
    from perfmodel.strategy.rules import STATUS_NAMES, STATUS_REASONS

    named = [
        f"{it.name}, {format_si(float(it.parameter_count()))} parameters" for it in asked["models"]
    ]
    devices = dict.fromkeys(problem.grid.devices for problem in found.problems)
    click.echo(heading(f"{'; '.join(named)}, on {_listed(devices)} devices"))
    names = dict.fromkeys(problem.framework.name for problem in found.problems)
    click.echo(f"software {', '.join(names)}")
    if assumptions:
        say(assumed_text(assumptions), 9)
    click.echo(f"strategies possible    {found.possible:>11,}")
    click.echo(f"           impossible  {sum(found.rejected.values()):>11,}")
    reasons = {STATUS_NAMES[code]: text for code, text in STATUS_REASONS.items()}
    for name, count in found.rejected.most_common():
        say(f"                       {count:>11,}  {reasons[name]}", 36)
    for name, count in _lacking(table, counts).items():
        say(f"                       {count:>11,}  {name} has no rate for their precision", 36)
    click.echo("fit in memory")
    fitting = dict(zip(table["hardware"].values.tolist(), counts.fitting, strict=True))
    for name, count in list(fitting.items())[:SHOWN_ROWS]:
        click.echo(f"           {count:>23,}  {name}")
    if len(fitting) > SHOWN_ROWS:
        click.echo(f"           {'…':>23}  and {len(fitting) - SHOWN_ROWS:,} more")
    if sum(fitting.values()):
        click.echo()
        top, by = shown
        usual = by == RATE
        name = "tokens per second and device" if usual else variable_title(by)
        click.echo(heading(f"Best by {name}"))
        chosen = best(table, top, by=by)
        print_strategies(chosen)
        print_costs(chosen)
    apart = [name for name in APART if len(set(column(table, name).tolist())) > 1]
    if apart and any(fitting.values()):
        title = " and ".join(apart).replace("hardware", "hardware row")
        click.echo()
        click.echo(heading(f"Best of each {title}"))
        winners = best_of_each(table, apart)[:SHOWN_ROWS]
        print_strategies(winners, shares=False)
        print_costs(winners)
    if "scaling" in table.attrs and any(fitting.values()):
        click.echo()
        print_scaling(scaling(table), str(table.attrs["scaling"]))


def _listed(counts: Iterable[int]) -> str:
    *others, last = (f"{count:,}" for count in counts)
    return f"{', '.join(others)} and {last}" if others else last


def _faster(hardware: Hardware, devices: int) -> str:
    """Return a sweep of what is likely to matter, in the words of the profile."""
    levels = hardware.system.network
    path, value, text = "device.memory.bandwidth", hardware.device.memory.bandwidth, "memory"
    if devices > 1:
        outer = devices > hardware.system.scale_up_devices or len(levels) == 1
        level = len(levels) - 1 if outer else 0
        path, value = f"system.network.{level}.bandwidth", levels[level].bandwidth
        text = f"network ({levels[level].name})"
    return f"{path}={value / 2:g}:{4 * value:g}:8   what a faster {text} brings"


def _suggest(
    stated: Mapping[str, Any],
    device: Hardware,
    problems: Sequence[Problem],
    table: Table,
    output: str | None,
) -> None:
    """Say what to try next, ready to paste."""
    from perfmodel.launch.software import software_of
    from perfmodel.store.results import best

    top = best(table, 1)[0]
    first = problems[0]
    wanted = top.get("model", first.model.name), top.get("framework", first.framework.name)
    problem = next(it for it in problems if (it.model.name, it.framework.name) == wanted)
    names = dict.fromkeys(it.model.name for it in problems)
    models = stated["model"]
    model = dict(zip(names, models, strict=False)).get(problem.model.name, models[0])
    devices = top.get("devices", first.grid.devices)
    chosen = command_line(problem, model, stated["hardware"][0], devices, top)
    for words in (reading_words(stated["reading"]), software_options(problem.framework)):
        chosen += f" {words}".rstrip()
    for path, value in of_hardware(stated["settings"]).items():
        chosen += f" --set {path}={written(value)}"
    remark("\nWhat to try next")
    if output is not None and output.lower().endswith((".nc", ".zarr")):  # those are read again
        remark(f"  perfmodel best {output} --top 20 --where 'pipeline_parallel > 1'")
        remark(f"  perfmodel best {output} --pareto step_time,memory_total")
        remark(f"  perfmodel launch {output} --for {software_of(problem.framework.name)}")
        if "training_cost" in table:
            remark(f"  perfmodel best {output} --by training_cost")
    else:
        remark("  -o sweep.nc                 keeps the results, for 'perfmodel best'")
    if len(table["hardware"].values) == 1:
        remark(f"  perfmodel explain {chosen}")
    if not stated["swept"]:
        remark(f"  --sweep {_faster(device, problem.grid.devices)}")
