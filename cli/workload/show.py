"""``perfmodel workload show``: what a workload file holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.units import format_size, format_time
from perfmodel.cli.group import Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.combinations import typed_options
from perfmodel.cli.shared.printing import activity, heading, print_json, table
from perfmodel.cli.workload.convert import input_options, load_traces
from perfmodel.parity.datasets import PHASES

if TYPE_CHECKING:
    from perfmodel.formats.aicb.text import AicbPhase
    from perfmodel.formats.astra_text.text import AstraTextPhase

SCHEMA_VERSION = "1"


@click.command("show", cls=Command, short_help="Describe a workload file.")
@click.argument("workload", metavar="WORKLOAD", type=click.Path())
@input_options
@options.json_option
@options.verbosity_options
def show_command(workload: str, as_json: bool, **given: Any) -> None:
    """Say what a workload holds: nodes or rows, operations, bytes by collective.

    \b
    Examples:
      perfmodel workload show traces/llama
      perfmodel workload show workload.txt --json
    """
    from perfmodel.convert.opening import check_input_options
    from perfmodel.convert.recognise import MEANINGS, workload_kind

    kind = given["kind"] or workload_kind(workload)
    check_input_options(workload, kind, typed_options())
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "workload": workload,
        "format": kind,
        **_described(workload, kind, given),
    }
    if as_json:
        print_json(document)
        return
    click.echo(heading(f"{workload}: {MEANINGS.get(kind, kind)}"))
    for key, value in document.items():
        if key in ("schema_version", "workload", "format", "collectives", "first_rank", "times"):
            continue
        if isinstance(value, Mapping):
            value = ", ".join(f"{name} {_cell(name, item)}" for name, item in value.items())
        click.echo(f"{key.replace('_', ' '):<22}{_cell(key, value)}")
    _print_collectives(document.get("collectives") or {})
    if document.get("times"):
        click.echo()
        rows = [[name, format_time(time)] for name, time in document["times"].items()]
        click.echo(table(["section", "time"], rows))


def _described(workload: str, kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a workload of any kind."""
    from perfmodel.convert import recognise

    readers = {
        recognise.AICB_TEXT: _aicb_text,
        recognise.AICB_CSV: _aicb_csv,
        recognise.VIDUR_CSV: _vidur,
        recognise.AIOB: _aiob,
    }
    if given["devices"] is None:
        readers[recognise.ASTRA_TEXT] = _astra_text
    if kind in readers:
        with activity(f"reading {workload}"):
            return readers[kind](workload)
    from perfmodel.convert.summary import traces_summary

    return traces_summary(load_traces(workload, given))


def _aicb_text(path: str) -> dict[str, Any]:
    """Return the figures of a SimAI text."""
    from perfmodel.formats.aicb.text import read_aicb_text

    workload = read_aicb_text(path)
    return {
        "policy": workload.header.policy,
        "header": dict(workload.header.entries),
        "rows": workload.rows,
        **_phases((workload.forward, workload.input_gradient, workload.weight_gradient)),
    }


def _astra_text(path: str) -> dict[str, Any]:
    """Return the figures of an ASTRA-sim text; its numbers are nanoseconds."""
    from perfmodel.formats.astra_text.text import read_astra_text

    workload = read_astra_text(path)
    return {
        "policy": workload.policy,
        "layers": workload.layers,
        **_phases(workload.phases),
    }


def _phases(phases: Sequence[AicbPhase | AstraTextPhase]) -> dict[str, Any]:
    """Return compute time and collectives of forward, input gradient and weight gradient."""
    return {
        "compute_time": {
            name: float(phase.compute_time.astype(float).sum()) * 1e-9
            for name, phase in zip(PHASES, phases, strict=True)
        },
        "collectives": _by_kind(
            (str(kind), int(size))
            for phase in phases
            for kind, size in zip(phase.collective, phase.size, strict=True)
            if str(kind) != "NONE"
        ),
    }


def _aicb_csv(path: str) -> dict[str, Any]:
    """Return the figures of AICB's table of calls."""
    from perfmodel.formats.aicb.csv import read_aicb_csv

    events = read_aicb_csv(path)
    calls = [
        (event.comm_type, int(event.message_size))
        for event in events
        if isinstance(event.message_size, int | float)
    ]
    operations = sum(event.floating_point_operations for event in events)
    return {"rows": len(events), "num_ops": operations, "collectives": _by_kind(calls)}


def _vidur(path: str) -> dict[str, Any]:
    """Return the figures of AICB's table for Vidur."""
    from perfmodel.formats.aicb.vidur import read_vidur_csv

    parts = read_vidur_csv(path)
    return {
        "rows": len(parts),
        "compute_time": float(sum(part.compute_time for part in parts)) * 1e-9,
        "communication_bytes": int(sum(part.message_size for part in parts)),
    }


def _aiob(path: str) -> dict[str, Any]:
    """Return the average times of a computation file."""
    from perfmodel.formats.aicb.aiob import read_aiob

    found = read_aiob(path)
    return {
        "iterations": found.train_iter,
        "phase": found.inference_term,
        "times": {name: time.average * 1e-6 for name, time in found.sections.items()},
    }


def _by_kind(calls: Iterable[tuple[str, int]]) -> dict[str, dict[str, int]]:
    """Return count and bytes of each kind of collective."""
    found: dict[str, dict[str, int]] = {}
    for kind, size in calls:
        row = found.setdefault(str(kind), {"count": 0, "bytes": 0})
        row["count"] += 1
        row["bytes"] += size
    return found


def _print_collectives(collectives: Mapping[str, Mapping[str, int]]) -> None:
    """Print a table of collectives."""
    if not collectives:
        return
    click.echo()
    rows = [
        [name, f"{row['count']:,}", format_size(row["bytes"])]
        for name, row in sorted(collectives.items())
    ]
    click.echo(table(["collective", "count", "bytes"], rows))


def _cell(name: str, value: Any) -> str:
    """Return a figure as text, in the unit that its name says."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if name == "bytes" or name.endswith("_bytes") or name == "tensor_size":
        return format_size(value)
    if isinstance(value, float):
        return format_time(value)
    if name == "num_ops":
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
