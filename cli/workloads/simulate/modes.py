"""What a text workload shows on our network model, beside ASTRA-sim 1.0 and its differences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.units import format_time
from perfmodel.cli.shared.printing import heading, print_json, remark, table
from perfmodel.kernels.variables import PHASES

if TYPE_CHECKING:
    from perfmodel.workloads.twins.astra_text.comparison import ModeComparison
    from perfmodel.workloads.twins.engines import Run

SCHEMA_VERSION = "1"
MOST_ROWS = 5  # collectives that differ most
TOTALS = ("total_time", "compute_time", "exposed_communication", "communication_time")


def show_modes(run: Run, found: ModeComparison, by: str, as_json: bool) -> None:
    """Print a run on our network model beside that of ASTRA-sim 1.0."""
    if as_json:
        print_json({"schema_version": SCHEMA_VERSION, "workload": run.workload} | document(found))
        return
    ours, exact = _totals(found)
    click.echo(heading(f"{run.workload} with our network model, beside ASTRA-sim 1.0"))
    rows = [
        [
            name.replace("_", " "),
            format_time(ours[name]),
            format_time(exact[name]) if exact else "–",
            _times(ours[name], exact[name] if exact else 0.0),
        ]
        for name in TOTALS
    ]
    click.echo(table(["", "ours", "ASTRA-sim 1.0", "ours / exact"], rows))
    if found.stopped:
        remark(f"note: ASTRA-sim 1.0 has no result: {found.stopped}")
    places = found.largest_differences(MOST_ROWS)
    if by == "layer":
        places = [(p, i) for i in range(len(found.physical.names)) for p in range(len(PHASES))]
        places = [(p, i) for p, i in places if found.physical.algorithm[p][i]]
    if places:
        title = "one collective alone" if by == "layer" else "collectives that differ most, alone"
        click.echo(f"\n{heading(title)}")
        click.echo(_collectives(found, places))
    reasons = dict.fromkeys(name for p, i in places for name in found.reasons[p][i])
    _explain("why collectives differ, in ASTRA-sim 1.0", list(reasons))
    _explain("what else changes the run", list(found.run_reasons))


def document(found: ModeComparison) -> dict[str, Any]:
    """Return both modes and their differences as JSON has them; times in seconds."""
    from perfmodel.workloads.twins.astra_text.comparison import REASONS, RUN_REASONS

    ours, exact = _totals(found)
    physical, native = found.physical, found.native
    columns = {
        "compute": physical.compute_time,
        "exposed": physical.exposed_time,
        "communication": physical.communication_time,
        "collective": physical.collective_time,
        "exact_collective": found.exact_collective_time,
        "ratio": found.ratio,
    }
    if native is not None:
        columns["exact_exposed"] = native.exposed_ns / 1e9
        columns["exact_communication"] = native.communication_ns / 1e9
    layers = [
        {"layer": name, "collectives": int(physical.collectives[layer])}
        | {
            phase: {key: float(values[p, layer]) for key, values in columns.items()}
            | {
                "algorithm": physical.algorithm[p][layer] or None,
                "reasons": list(found.reasons[p][layer]),
            }
            for p, phase in enumerate(PHASES)
        }
        for layer, name in enumerate(physical.names)
    ]
    used = {name for row in found.reasons for names in row for name in names}
    return {
        **ours,
        "pass_end": physical.pass_end.tolist(),
        "exact": exact,
        "exact_stopped": found.stopped or None,
        "reasons": {name: text for name, text in REASONS.items() if name in used},
        "run_reasons": {name: RUN_REASONS[name] for name in found.run_reasons},
        "layers": layers,
    }


def _totals(found: ModeComparison) -> tuple[dict[str, float], dict[str, float] | None]:
    """Return the sums of our run and of the exact one, where there is one [s]."""
    physical, native = found.physical, found.native
    compute = float(physical.compute_time.sum())
    ours = (
        physical.total_time,
        compute,
        physical.exposed_communication,
        float(physical.communication_time.sum()),
    )
    if native is None:
        return dict(zip(TOTALS, ours, strict=True)), None
    computing = int(native.compute_ns.sum())
    counted = (
        native.total_ns,
        computing,
        native.total_ns - computing,
        int(native.communication_ns.sum()),
    )
    exact = {name: value / 1e9 for name, value in zip(TOTALS, counted, strict=True)}
    return dict(zip(TOTALS, ours, strict=True)), exact


def _collectives(found: ModeComparison, places: list[tuple[int, int]]) -> str:
    """Return a table of collectives, alone in the network and in the runs."""
    rows = []
    physical, native = found.physical, found.native
    for p, i in places:
        ours, exact = physical.collective_time[p, i], found.exact_collective_time[p, i]
        rows.append(
            [
                physical.names[i],
                PHASES[p].replace("_", " "),
                format_time(ours),
                "–" if math.isnan(exact) else format_time(exact),
                _times(ours, exact),
                format_time(physical.communication_time[p, i]),
                "–" if native is None else format_time(native.communication_ns[p, i] / 1e9),
                physical.algorithm[p][i].replace("_", " "),
                ", ".join(found.reasons[p][i]).replace("_", " "),
            ]
        )
    headers = ["layer", "phase", "ours", "exact", "ours / exact", "in the run", "exact"]
    return table([*headers, "our algorithm", "why"], rows, left=(0, 1, 7, 8))


def _times(ours: float, exact: float) -> str:
    """Return a ratio; a dash where there is none."""
    return f"{ours / exact:.3g}" if exact > 0 else "–"


def _explain(title: str, names: list[str]) -> None:
    """Print what names of reasons mean."""
    from perfmodel.workloads.twins.astra_text.comparison import REASONS, RUN_REASONS

    if names:
        click.echo(f"\n{heading(title)}")
    for name in names:
        click.echo(f"  {name.replace('_', ' ')}: {(REASONS | RUN_REASONS)[name]}")
