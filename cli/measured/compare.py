"""``perfmodel compare``: projected against measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.group import EXIT_FAILURE
from perfmodel.cli.shared import options
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import (
    error_statistic,
    heading,
    percent,
    print_json,
    progress,
    remark,
    table,
)
from perfmodel.cli.shared.types import parse_percentage
from perfmodel.cli.shared.workers import chosen_workers, worker_options

if TYPE_CHECKING:
    from perfmodel.measured.compare import Comparison

STATISTICS = {
    "count": "rows",
    "median_absolute_error": "median",
    "mean_absolute_error": "mean",
    "p90_absolute_error": "p90",
    "worst_absolute_error": "worst",
    "bias": "bias",
}
BELOW = "share_below_peak"


def _share(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    return None if value is None else parse_percentage(value)


@click.command("compare", **page("measured", "compare", "Compare projections with measured runs."))
@click.argument("kind", metavar="KIND")
@click.argument("file", metavar="RUNS.csv", type=click.Path())
@options.options_of("measured.compare", "where", "by", "metric")
@options.one_hardware_option(
    section="Selection",
    text="Profile that stands in for what every row names, such as a calibrated one.",
)
@options.options_of("measured.compare", "throughput")
@options.options_of("measured.compare", "max_error", callback=_share)
@options.output_option("FILE.csv", "Write every row with its projection and error.")
@options.options_of("measured.compare", "plot")
@worker_options("Project the rows")
@options.json_option
@options.verbosity_options
@click.pass_context
def compare_command(
    ctx: click.Context,
    kind: str,
    file: str,
    where: str | None,
    by: list[str] | None,
    metric: str | None,
    throughput: bool,
    max_error: float | None,
    output: str | None,
    plot: str | None,
    hardware: str | None,
    workers: int | None,
    scheduler: str | None,
    as_json: bool,
) -> None:
    """Project every row of a table of measurements and print the errors by group."""
    from perfmodel.base.files import check_writable
    from perfmodel.measured.compare import compare_file

    if output is not None:
        output = str(check_writable(output))
    if plot is not None:
        from perfmodel.report.plots.figure import check_saving

        check_saving(plot)
        check_writable(plot)
    with (
        chosen_workers(workers, scheduler) as found_workers,
        progress(100, "percent of the rows") as advance,
    ):
        found = compare_file(
            kind,
            file,
            where=where,
            by=by,
            progress=_percent(advance),
            hardware=hardware,
            metric=metric,
            workers=found_workers,
        )
    if output is not None:
        found.write_rows(output)
        remark(f"wrote {output}")
    if plot is not None:
        from perfmodel.report.plots.kinds import plot as plot_of

        plot_of(found, "accuracy").save(plot)
        remark(f"wrote {plot}")
    document = found.to_json_dict(throughput)
    if as_json:
        print_json(document)
    else:
        _print(found, document)
    median = document["median_absolute_error"]
    if max_error is not None and (median is None or median > max_error):
        reached = "nothing was scored"
        if median is not None:
            reached = f"the median error is {percent(median)}"
        click.echo(f"perfmodel: {reached}, above --max-error {percent(max_error)}", err=True)
        ctx.exit(EXIT_FAILURE)


def _percent(advance: Callable[[int], None] | None) -> Callable[[int, int], None] | None:
    """Turn (done, total) into steps of a bar of 100."""
    if advance is None:
        return None
    shown = 0

    def show(done: int, total: int) -> None:
        nonlocal shown
        now = 100 * done // max(total, 1)
        advance(now - shown)
        shown = now

    return show


def _print(found: Comparison, document: Mapping[str, Any]) -> None:
    click.echo(heading(f"{found.kind}: {document['error_of']}, projected against measured"))
    coverage = document["coverage"]
    click.echo(
        f"{document['count']:,} of {document['rows']:,} rows scored"
        + ("" if coverage is None else f", coverage {percent(coverage)}")
    )
    headers = ["group", *STATISTICS.values()]
    if BELOW in document:
        headers.append(f"{percent(found.below)} below")
    blank = [""] * (len(headers) - 1)
    lines = [_line("all", document)]
    for column, groups in document["groups"].items():
        lines.append(["", *blank])
        lines.append([f"by {column}", *blank])
        lines += [_line(f"  {value}", statistics) for value, statistics in groups.items()]
    click.echo()
    click.echo(table(headers, lines))
    if document["skipped"]:
        click.echo()
        skipped = [[reason, f"{count:,}"] for reason, count in document["skipped"].items()]
        click.echo(table(["not scored", "rows"], skipped))
    for title, entries in found.further.items():
        names = list(dict.fromkeys(name for entry in entries for name in entry))
        cells = [[_cell(name, entry.get(name)) for name in names] for entry in entries]
        click.echo()
        click.echo(heading(title))
        click.echo(table([name.replace("_", " ") for name in names], cells))


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return percent(value) if name.endswith(("error", "share")) else f"{value:.4g}"
    return str(value)


def _line(label: str, statistics: Mapping[str, Any]) -> list[str]:
    count = f"{statistics['count']:,} of {statistics['rows']:,}"
    names = [*STATISTICS, *([BELOW] if BELOW in statistics else [])]
    errors = [error_statistic(name, statistics[name]) for name in names if name != "count"]
    return [label, count, *errors]
