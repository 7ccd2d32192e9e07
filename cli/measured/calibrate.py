"""``perfmodel calibrate``: fit a profile's adjustable constants to measured kernels."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.shared import completions, options
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
from perfmodel.cli.shared.workers import chosen_workers, worker_options

if TYPE_CHECKING:
    from perfmodel.measured.calibrate import Calibration, Parameter
    from perfmodel.measured.problem import MeasuredTable

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


@click.command("calibrate", **page("measured", "calibrate", "Fit a profile to measured kernels."))
@click.argument(
    "profile", metavar="PROFILE", required=False, shell_complete=completions.complete_hardware
)
@click.argument("files", metavar="MEASURED.csv", nargs=-1, type=click.Path())
@options.output_option(
    "FILE.toml",
    "Write a profile that extends PROFILE and holds what changed; of a family, lines for its "
    "profile and for fits.toml.",
)
@options.options_of(
    "measured.calibrate",
    "kind",
    "where",
    "all_rows",
    "family",
    "id",
    "bands",
    "only",
    "from_prior",
    "sample",
)
@worker_options("Do the fits, to all rows and without each fold,")
@options.json_option
@options.verbosity_options
def calibrate_command(
    profile: str | None,
    files: tuple[str, ...],
    output: str | None,
    kind: str | None,
    where: tuple[str, ...],
    all_rows: bool,
    family: str | None,
    name: str | None,
    bands: bool,
    only: list[str] | None,
    from_prior: bool,
    sample: int,
    workers: int | None,
    scheduler: str | None,
    as_json: bool,
) -> None:
    """Fit the constants that PROFILE declares adjustable to a table of measured kernels."""
    from perfmodel.base.files import check_writable
    from perfmodel.measured.calibrate import calibrate_family, calibrate_file, judge_family
    from perfmodel.measured.calibration import (
        check_lines_output,
        check_output,
        family_json,
        fit_id,
        write_family,
    )

    if family is not None:
        files = (*([profile] if profile else []), *files)
    if profile and family is None and not files:
        _print_suggestions(profile, as_json)
        return
    _check_given(profile, files, family, where, all_rows, bands, name)
    if bands and (workers or scheduler):
        raise click.UsageError("--bands fits nothing that workers could share; drop them")
    if output is not None:
        if family is None:
            check_output(Path(output), str(profile))
        else:
            check_lines_output(Path(output))
        check_writable(output)
    with (
        chosen_workers(workers, scheduler) as found_workers,
        progress(MOST_FITS, "fits") as advance,
    ):
        told = None if advance is None else lambda done, total: advance(1)
        if family is None:
            found = calibrate_file(
                str(profile),
                files[0],
                kind=kind,
                where=where[0] if where else None,
                all_rows=all_rows,
                only=only,
                from_prior=from_prior,
                limit=sample,
                progress=told,
                workers=found_workers,
            )
        elif bands:
            found = judge_family(family, _tables(files, kind, where))
        else:
            found = calibrate_family(
                family,
                _tables(files, kind, where),
                only=only,
                from_prior=from_prior,
                limit=sample,
                progress=told,
                workers=found_workers,
            )
    document = found.to_json_dict()
    if family is not None:
        name = name or fit_id(found)
        script = _command(family, files, kind, where, only, from_prior, sample, bands)
        document |= family_json(found, name, script)
        if output is not None:
            write_family(found, Path(output), name, script)
    elif output is not None:
        found.write_profile(output)
    if as_json:
        print_json(document | {"output": output})
    else:
        _print(found)
    if output is not None:
        remark(f"\nwrote {output}")
    if output is not None and family is None:
        remark(f"  perfmodel compare {found.tables[0].kind} {files[0]} --hardware {output}")


def _print_suggestions(profile: str, as_json: bool) -> None:
    """Print what would be worth measuring."""
    from perfmodel.hwprofiles import load_hardware
    from perfmodel.measured.suggest import suggest
    from perfmodel.sweeps.trust import trust_words

    hardware = load_hardware(profile)
    found = suggest(hardware)
    if as_json:
        measurements = [
            {
                "kernel": item.candidate.kernel,
                "what": item.candidate.what,
                "axes": dict(item.candidate.axes),
                "spread_before": item.spread_before,
                "spread_after": item.spread_after,
            }
            for item in found
        ]
        print_json({"profile": hardware.name, "measurements": measurements})
        return
    click.echo(heading(f"{hardware.name}: what would be worth measuring"))
    click.echo(f"constants {trust_words(hardware)}")
    rows = [
        [str(place), item.candidate.what, percent(item.spread_before), percent(item.spread_after)]
        for place, item in enumerate(found, 1)
    ]
    click.echo(table(["#", "kernel", "spread before", "after"], rows, left=(1,)))
    remark(
        "spread: standard deviation of everyday kernels' times while constants are uncertain;"
        "\nbenchmarks/measure/*.py time them, and 'perfmodel calibrate' with their tables fits them"
    )


def _check_given(
    profile: str | None,
    files: tuple[str, ...],
    family: str | None,
    where: tuple[str, ...],
    all_rows: bool,
    bands: bool,
    name: str | None,
) -> None:
    """Refuse arguments that do not go together."""
    if not files:
        missing = "MEASURED.csv" if profile or family else "PROFILE"
        raise click.UsageError(f"Missing argument '{missing}'.")
    if family is None and (len(files) > 1 or len(where) > 1 or bands or name):
        what = "several tables" if len(files) > 1 else "several filters"
        what = "--bands" if bands else "--id" if name else what
        raise click.UsageError(f"{what} without --family: a profile is fitted to one table")
    if family is not None and all_rows:
        raise click.UsageError("--all-rows with --family: the rows of all its devices count anyway")
    if len(where) not in (0, 1, len(files)):
        raise click.UsageError(
            f"{len(where)} filters (--where) for {len(files)} tables: one for all, or one for each"
        )


def _tables(
    files: tuple[str, ...], kind: str | None, where: tuple[str, ...]
) -> list[MeasuredTable]:
    """Return what each file holds and which of its rows count."""
    from perfmodel.measured.problem import MeasuredTable, infer_kind

    filters = where if len(where) == len(files) else (*where, None)[:1] * len(files)
    return [
        MeasuredTable(file, kind or infer_kind(file), text)
        for file, text in zip(files, filters, strict=True)
    ]


def _command(
    family: str,
    files: tuple[str, ...],
    kind: str | None,
    where: tuple[str, ...],
    keys: list[str] | None,
    from_prior: bool,
    sample: int,
    bands: bool,
) -> str:
    """Return the command as fits.toml keeps it, files by their names."""
    words = ["perfmodel", "calibrate", "--family", family, *(Path(file).name for file in files)]
    words += ["--kind", kind] if kind else []
    words += [word for text in where for word in ("--where", text)]
    if bands:
        return shlex.join([*words, "--bands"])
    words += ["--only", ",".join(keys)] if keys else []
    words += ["--from-prior"] if from_prior else []
    return shlex.join([*words, "--sample", str(sample)])


def _print(found: Calibration) -> None:
    count = found.regimes.size
    kinds = ", ".join(dict.fromkeys(measured.kind for measured in found.tables))
    files = ", ".join(dict.fromkeys(Path(measured.file).name for measured in found.tables))
    verb = "fitted to" if found.parameters else "judged by"
    click.echo(heading(f"{found.subject.name}: {kinds} {verb} {files}"))
    fitted = f", {found.fitted:,} of them fitted" if found.parameters else ""
    click.echo(f"{count:,} of {found.rows:,} rows used{fitted}")
    for reason, rows in found.skipped.items():
        click.echo(f"  {rows:,} left out: {reason}")
    click.echo()
    if found.parameters:
        _print_parameters(found.parameters)
    for which in found.log_ratios:
        click.echo()
        lines = [_error_line(name, row) for name, row in found.errors(which).items()]
        click.echo(table([f"error, {STAGES[which]}", *STATISTICS.values()], lines))
    if found.uncertainty:
        click.echo()
        lines = [
            [name, f"±{percent(value)}", f"{rows:,}"]
            for name, (value, rows) in found.uncertainty.items()
        ]
        click.echo(table(["10-90 % band", "", "rows"], lines))


def _print_parameters(parameters: Sequence[Parameter]) -> None:
    headers = ["constant", "unit", "before", "after", "±", "low", "high", "data", ""]
    silent = [item for item in parameters if item.resolution < UNHEARD]
    lines = [_parameter_line(item) for item in parameters if item not in silent]
    click.echo(table(headers, lines, left=(0, 1, 8)))
    if silent:
        click.echo(f"kept, the rows say nothing of them: {', '.join(item.key for item in silent)}")
    click.echo("data: share of the value that the rows decide; the rest is the prior's")


def _parameter_line(parameter: Parameter) -> list[str]:
    note = parameter.warning if parameter.informed else "kept: the rows say too little"
    return [
        parameter.path.removeprefix("calibration."),
        parameter.unit or "1",
        f"{parameter.before:.4g}",
        f"{parameter.after:.4g}",
        f"{parameter.uncertainty:.2g}" if parameter.informed else "–",
        f"{parameter.low:.3g}",
        f"{parameter.high:.3g}",
        f"{100 * parameter.resolution:.0f} %",
        note,
    ]


def _error_line(label: str, row: dict[str, Any]) -> list[str]:
    errors = [error_statistic(name, row[name]) for name in STATISTICS if name != "count"]
    return [label, f"{row['count']:,}", *errors]
