"""``perfmodel calibrate``: fit a profile's adjustable constants to measured kernels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.group import Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.parsing import split_names
from perfmodel.cli.shared.printing import (
    announce_compilation,
    error_statistic,
    heading,
    print_json,
    progress,
    remark,
    table,
)

if TYPE_CHECKING:
    from perfmodel.measured.calibrate import Calibration, Parameter

STATISTICS = {
    "count": "rows",
    "median_absolute_error": "median",
    "mean_absolute_error": "mean",
    "p90_absolute_error": "p90",
    "bias": "bias",
}
STAGES = {"before": "before", "after": "after", "cross_validated": "unseen rows"}
MOST_FITS = 6
UNHEARD = 0.005  # shown as 0 %


@click.command("calibrate", cls=Command, short_help="Fit a profile to measured kernels.")
@click.argument("profile", metavar="PROFILE", shell_complete=options.complete_hardware)
@click.argument("file", metavar="MEASURED.csv", type=click.Path())
@options.output_option("FILE.toml", "Write a profile that extends PROFILE and holds what changed.")
@options.option(
    "--force", section=options.OUTPUT, is_flag=True, help="Replace FILE.toml where it exists."
)
@options.option(
    "--kind",
    section="Selection",
    metavar="KIND",
    help="What the table holds: gemm, attention, mla, moe, stream.  [default: by its columns]",
)
@options.option(
    "--where",
    section="Selection",
    metavar="EXPR",
    help="Filter over the columns of the table; text in quotes.",
)
@options.option(
    "--all-rows",
    section="Selection",
    is_flag=True,
    help="Also rows of other devices, each with its own device's facts: what a family has "
    "in common.",
)
@options.option(
    "--only",
    section="Fit",
    multiple=True,
    metavar="KEY,…",
    help="Fit these constants only.  [default: all that PROFILE declares adjustable]",
)
@options.option(
    "--from-prior",
    section="Fit",
    is_flag=True,
    help="Start from and be held by the physical priors, not the values in use.",
)
@options.option(
    "--sample",
    section="Fit",
    type=click.IntRange(min=20),
    default=4000,
    show_default=True,
    metavar="N",
    help="Rows that the fit sees, an equal share of each regime; all rows judge it.",
)
@options.json_option
@options.verbosity_options
def calibrate_command(
    profile: str,
    file: str,
    output: str | None,
    force: bool,
    kind: str | None,
    where: str | None,
    all_rows: bool,
    only: tuple[str, ...],
    from_prior: bool,
    sample: int,
    as_json: bool,
) -> None:
    """Fit the constants that PROFILE declares adjustable to a table of measured kernels.

    MEASURED.csv has the columns of docs/calibration.md, in which benchmarks/measure/*.py
    write. Only rows of the device of PROFILE count. The fit is robust (soft-L1 of
    ln(predicted/measured)), keeps within the physical bounds, and is held by the values
    in use where the data say little; it is judged by rows that it has not seen. The
    new profile says where each number is from, and works wherever a name does.

    \b
    Examples:
      perfmodel calibrate dgx-h100 gemm.csv -o my-h100.toml
      perfmodel calibrate my-h100.toml attention.csv \\
          --where 'framework == "sglang"' \\
          -o my-h100-attention.toml
      perfmodel calibrate dgx-h100 gemm.csv --only launch_latency --json
      perfmodel compare gemm gemm.csv --hardware my-h100.toml

    Units: errors are relative, 0.05 is 5 %; bias is the mean signed error, above 0 where
    predicted kernels take too long. Constants are in SI units.

    Exit codes: 0 done, 1 failure, 2 wrong input.
    """
    from perfmodel.base.files import check_writable
    from perfmodel.measured.calibrate import calibrate_file, check_output

    if output is not None:
        check_output(Path(output), profile, force)
        check_writable(output)
    keys = [name for item in only for name in split_names(item)]
    announce_compilation()
    with progress(MOST_FITS, "fits") as advance:
        found = calibrate_file(
            profile,
            file,
            kind=kind,
            where=where,
            all_rows=all_rows,
            only=keys or None,
            from_prior=from_prior,
            limit=sample,
            progress=None if advance is None else lambda done, total: advance(1),
        )
    if output is not None:
        found.write_profile(output, force)
    if as_json:
        print_json(found.to_json_dict() | {"output": output})
    else:
        _print(found)
    if output is not None:
        remark(f"\nwrote {output}")
        remark(f"  perfmodel compare {found.kind} {file} --hardware {output}")


def _print(found: Calibration) -> None:
    count = found.regimes.size
    click.echo(heading(f"{found.profile.name}: {found.kind} fitted to {Path(found.file).name}"))
    click.echo(f"{count:,} of {found.rows:,} rows used, {found.fitted:,} of them fitted")
    for reason, rows in found.skipped.items():
        click.echo(f"  {rows:,} left out: {reason}")
    click.echo()
    headers = ["constant", "unit", "before", "after", "±", "low", "high", "data", ""]
    silent = [item for item in found.parameters if item.resolution < UNHEARD]
    lines = [_parameter_line(item) for item in found.parameters if item not in silent]
    click.echo(table(headers, lines, left=(0, 1, 8)))
    if silent:
        names = ", ".join(item.path.rsplit(".", 1)[1] for item in silent)
        click.echo(f"kept, the rows say nothing of them: {names}")
    click.echo("data: share of the value that the rows decide; the rest is the prior's")
    for which in found.log_ratios:
        click.echo()
        lines = [_error_line(name, row) for name, row in found.errors(which).items()]
        click.echo(table([f"error, {STAGES[which]}", *STATISTICS.values()], lines))
    if found.uncertainty:
        click.echo()
        lines = [
            [name, f"±{value:.1%}", f"{rows:,}"]
            for name, (value, rows) in found.uncertainty.items()
        ]
        click.echo(table(["10-90 % band", "", "rows"], lines))


def _parameter_line(parameter: Parameter) -> list[str]:
    if parameter.at_bound:
        note = "at its bound"
    else:
        note = "" if parameter.informed else "kept: the rows say too little"
    return [
        parameter.path.removeprefix("calibration."),
        parameter.unit or "1",
        f"{parameter.before:.4g}",
        f"{parameter.after:.4g}",
        f"{parameter.uncertainty:.2g}" if parameter.informed else "–",
        f"{parameter.low:.3g}",
        f"{parameter.high:.3g}",
        f"{parameter.resolution:.0%}",
        note,
    ]


def _error_line(label: str, row: dict[str, Any]) -> list[str]:
    errors = [error_statistic(name, row[name]) for name in STATISTICS if name != "count"]
    return [label, f"{row['count']:,}", *errors]
