"""Served models on a terminal and as JSON."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.served_fields import DEPLOYMENT_FIELD_BY_NAME, is_closed_loop
from perfmodel.cli.core.serve_options import Question
from perfmodel.cli.shared.costs import costs_header, print_costs
from perfmodel.cli.shared.inputs import assumed_text, written
from perfmodel.cli.shared.models import reading_document, reading_words
from perfmodel.cli.shared.printing import heading, print_json, remark, say
from perfmodel.cli.shared.serving_tables import (
    RATE,
    field_words,
    points_header,
    print_latencies,
    print_operations,
    print_pass,
    print_points,
    print_serving_memory,
    print_throughput,
)
from perfmodel.cli.shared.serving_tables import written as cell

if TYPE_CHECKING:
    from perfmodel.base.table import Table
    from perfmodel.software.engine import Engine

LIMIT_FIELDS = tuple(DEPLOYMENT_FIELD_BY_NAME[name] for name in ("token_budget", "max_sequences"))
PROMPT_RATE = "total_tokens_per_second_per_device"
USER = "tokens_per_second_per_user"
VALID = "valid"


def print_point(question: Question, table: Table, top: int, explain: bool, as_json: bool) -> bool:
    """Print the one operating point of a table; tell whether it is possible."""
    import numpy as np

    from perfmodel.store.results import rows

    (row,) = rows(table, np.zeros(1, np.intp))
    possible = row["status"] == VALID
    operations: dict[str, Any] = {}
    if explain and possible:
        from perfmodel.analysis.explain import explain_point

        operations = explain_point(question.grid, question.loads, question.rows[0], row)
    if as_json:
        document = _header(question, table) | dict(row)
        if explain:
            document["operations"] = {
                name: [dataclasses.asdict(item) for item in found]
                for name, found in operations.items()
            }
        print_json(document)
        return possible
    if not possible:
        return False
    _print_title(question, row)
    print_latencies(row)
    click.echo()
    print_throughput(row)
    click.echo()
    for name, found in operations.items():
        print_operations(name, found, top)
        click.echo()
    if not operations:
        print_pass(row)
        click.echo()
    print_serving_memory(row)
    print_costs([row])
    return True


def _print_title(question: Question, row: Mapping[str, Any]) -> None:
    from perfmodel.serving.limits import LIMITS, limit_of

    hardware = question.rows[0]
    devices = f"{row['devices']:,.0f} × {hardware.device.name} ({row['hardware']})"
    click.echo(heading(f"{question.model.name} on {devices}, {row['engine']}"))
    limits = [f"{spec.option} {cell(row[spec.name])}" for spec in LIMIT_FIELDS]
    say(" · ".join([*field_words(row), *limits, f"method {row['method']}"]))
    if question.assumed:
        say(assumed_text(question.assumed), 9)
    _say_trust(question)
    if not question.is_phase:
        say(LIMITS[limit_of(row)])
    click.echo()


def _say_trust(question: Question) -> None:
    from perfmodel.sweeps.trust import uncalibrated_in_serving

    for line in uncalibrated_in_serving(question.rows):
        say(line, 11)


def _header(question: Question, table: Table) -> dict[str, Any]:
    from perfmodel.sweeps.trust import trust_document

    return (
        points_header(table)
        | costs_header(table)
        | reading_document([question.model])
        | {"assumed": question.assumed}
        | {"constants_trust": {row.name: trust_document(row) for row in question.rows}}
    )


def print_grid(
    question: Question, table: Table, top: int, as_json: bool, output: str | None
) -> bool:
    """Print what is best in a table, its Pareto front and what is impossible."""
    from perfmodel.store.results import best, best_of_each, column, pareto

    rate = PROMPT_RATE if question.method == "prefill" else RATE
    statuses = _statuses(table)
    chosen = best(table, top, by=rate)
    front = [] if question.method == "prefill" else pareto(table, [RATE, USER])
    if as_json:
        counts = {
            "deployments": len(question.grid),
            "impossible": _rejected(question),
            "points": question.count,
            "statuses": dict(statuses),
            "output": output,
        }
        results = {"best": chosen, "pareto": front}
        print_json(_header(question, table) | counts | results)
        return bool(chosen)
    _print_counts(question, statuses)
    if not chosen:
        return False
    click.echo()
    per = "tokens of prompts" if question.method == "prefill" else "output tokens"
    click.echo(heading(f"Best by {per} per second and device"))
    print_points(chosen)
    print_costs(chosen)
    apart = [name for name in ("engine", "hardware") if len(set(column(table, name).tolist())) > 1]
    if apart:
        click.echo()
        click.echo(heading(f"Best of each {' and '.join(apart)}"))
        print_points(best_of_each(table, apart)[:MOST_ROWS])
    if len(front) > 1:
        click.echo()
        shown = front[: max(top, MOST_ROWS)]
        click.echo(heading("Not beaten in tokens per second per device and per user"))
        print_points(shown)
        if len(front) > len(shown):
            click.echo(f"… and {len(front) - len(shown):,} more; --json or -o FILE shows them")
    return True


MOST_ROWS = 12


def _statuses(table: Table) -> Counter[str]:
    from perfmodel.store.results import column

    return Counter(column(table, "status").tolist())


def _rejected(question: Question) -> dict[str, int]:
    """Return how many deployments break which rule, the most frequent first."""
    from perfmodel.serving.grid import STATUS_NAMES

    counts = Counter(question.every.status[question.every.status != 0].tolist())
    return {STATUS_NAMES[code]: count for code, count in counts.most_common()}


def _print_counts(question: Question, statuses: Counter[str]) -> None:
    from perfmodel.base.units import format_si
    from perfmodel.serving.grid import STATUS_NAMES, STATUS_REASONS

    reasons = {STATUS_NAMES[code]: text for code, text in STATUS_REASONS.items()}
    parameters = format_si(float(question.model.without_mtp().parameter_count()))
    hardware = ", ".join(dict.fromkeys(row.name for row in question.rows))
    engines = ", ".join(item.name for item in question.grid.engines)
    click.echo(heading(f"{question.model.name}, {parameters} parameters, on {hardware}"))
    click.echo(f"engine {engines}")
    if question.assumed:
        say(assumed_text(question.assumed), 9)
    _say_trust(question)
    rejected = _rejected(question)
    click.echo(f"deployments possible    {len(question.grid):>11,}")
    click.echo(f"            impossible  {sum(rejected.values()):>11,}")
    for name, count in rejected.items():
        say(f"                        {count:>11,}  {reasons[name]}", 37)
    click.echo(f"operating points        {question.count:>11,}")
    click.echo(f"            possible    {statuses[VALID]:>11,}")
    for name, count in statuses.most_common():
        if name != VALID:
            say(f"                        {count:>11,}  {reasons[name]}", 37)


def nothing_possible(table: Table) -> str:
    """Say in one line why no operating point is possible, and what to try."""
    from perfmodel.serving.grid import STATUS_NAMES, STATUS_REASONS

    reasons = {STATUS_NAMES[code]: text for code, text in STATUS_REASONS.items()}
    counts = _statuses(table).most_common(3)
    found = "; ".join(
        reasons[name] + (f" ({count:,})" if len(counts) > 1 else "") for name, count in counts
    )
    tries = [REMEDIES[name] for name, _ in counts if name in REMEDIES]
    hint = f"; try {', or '.join(dict.fromkeys(tries))}" if tries else ""
    return f"perfmodel: no operating point is possible: {found}{hint}"


REMEDIES: Mapping[str, str] = {
    "memory_too_small": "a larger --tp or --pp, --precision fp8, or hardware with more memory",
    "precision_unsupported": "another --precision ('perfmodel hardware show' lists the rates)",
    "context_too_long": "shorter --isl and --osl",
    "rate_above_capacity": "a smaller --rate, more --workers, or a larger --tp",
    "cache_below_one_request": "a larger --tp or --pp, --kv-precision fp8, or shorter requests",
    "fewer_requests_than_ranks": "more --concurrency, or fewer --dp-attention, --pp and --workers",
}
"""Status -> options that help."""


def suggest(question: Question, table: Table, output: str | None, explained: bool) -> None:
    """Say what to try next, ready to paste."""
    from perfmodel.store.results import best

    rate = PROMPT_RATE if question.method == "prefill" else RATE
    top = next(iter(best(table, 1, by=rate)), None)
    if top is None:
        return
    about = question.grid.engines, question.settings, question.reading
    chosen = f"perfmodel serve {point_options(question.model_name, top, *about)}"
    remark("\nWhat to try next")
    if output is not None and output.lower().endswith(".nc"):
        remark(f"  perfmodel best {output} --pareto {RATE},{USER} --where 'ttft_p95 < 2'")
        remark(f"  perfmodel best {output} --by tpot --where '{RATE} > {top[RATE] / 2:.0f}'")
    elif not question.is_one:
        remark("  -o serve.nc                 keeps all points, for 'perfmodel best'")
    if question.is_phase or question.trace is not None:
        return
    if not explained:
        remark(f"  {chosen} --explain")
    if question.is_one and is_closed_loop(top):
        more = f"1:{max(8 * int(top['concurrency']), 64)}:x2"
        wider = {**top, "concurrency": more, "tensor_parallel": None}
        named = point_options(question.model_name, wider, *about)
        remark(f"  perfmodel serve {named} -o serve.nc")


def point_options(
    model: str,
    row: Mapping[str, Any],
    engines: Sequence[Engine],
    settings: Mapping[str, Any],
    reading: Mapping[str, Any],
) -> str:
    """Return the options that name one point.

    Parameters
    ----------
    model : str
        As it was typed.
    row : mapping
        Its fields; those that are None are left out.
    engines : sequence of Engine
        One of them is the point's.
    settings, reading : mapping
        Values of ``--set``, and how the model is read.
    """
    from perfmodel.base.served_fields import DEPLOYMENT_FIELDS, ENGINE_LIMITS, LOAD_FIELDS

    engine = next(item for item in engines if item.name == row["engine"])
    own = {name: getattr(engine, name) for name in ENGINE_LIMITS}
    words = ["--model", model, "--hardware", str(row["hardware"]).partition("[")[0]]
    words += ["--engine", str(row["engine"]).partition("[")[0]]
    prefill = []
    formats = row["weight_precision"], row["activation_precision"]
    for spec in (*DEPLOYMENT_FIELDS, *LOAD_FIELDS):
        value = row[spec.name]
        implied = own.get(spec.name, spec.default)
        if value is None or (value == implied and spec.name != "tensor_parallel"):
            continue
        if spec.name in ("weight_precision", "activation_precision", "acceptance"):
            continue
        if spec.name == "draft_length":
            words += ["--speculative", f"mtp:{value}:{row['acceptance']:g}"]
        elif spec.name.startswith("prefill_"):
            prefill.append(f"{spec.option.removeprefix('prefill-')}={value}")
        else:
            words += [f"--{spec.option}", f"{value:g}" if isinstance(value, float) else str(value)]
    if formats != ("stated", "stated"):
        words += ["--precision", formats[0] if formats[1] == "stated" else ":".join(formats)]
    if prefill:
        words += ["--disaggregate", "--prefill", ",".join(prefill)]
    for path, value in settings.items():
        words += ["--set", f"{path}={written(value)}"]
    return " ".join(filter(None, [shlex.join(words), reading_words(reading)]))
