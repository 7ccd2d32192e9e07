"""What a run of a workload shows: a table, JSON, netCDF, a timeline.

Of a text workload on our network model: what it does there beside ASTRA-sim 1.0, and why.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import PerfModelError
from perfmodel.base.units import counted, format_si, format_time
from perfmodel.cli.shared.printing import (
    activity,
    detail,
    heading,
    print_json,
    remark,
    share,
    table,
)
from perfmodel.cli.workloads.workload_traces import SCHEMA_VERSION, print_collectives
from perfmodel.kernels.variables import PHASES

if TYPE_CHECKING:
    from perfmodel.workloads.simulation.result import Simulation
    from perfmodel.workloads.trace import TraceSet
    from perfmodel.workloads.twins.astra.beside import Beside
    from perfmodel.workloads.twins.astra_text.comparison import ModeComparison
    from perfmodel.workloads.twins.astra_text.native import NativeResult
    from perfmodel.workloads.twins.engines import Run
    from perfmodel.workloads.twins.simai.step import SimaiResult

SHORT_PHASES = ("forward", "input grad", "weight grad")
# Figures in the order in which they are printed: name, heading, unit.
SHOWN = (
    ("wall_time", "wall time", "s"),
    ("gpu_time", "device computes", "s"),
    ("communication_time", "communication", "s"),
    ("exposed_communication", "exposed communication", "s"),
    ("cpu_time", "host works", "s"),
    ("compute_bound_fraction", "compute bound", "%"),
    ("compute_utilization", "compute utilization", "%"),
    ("memory_utilization", "memory utilization", "%"),
    ("operation_intensity", "operation intensity", "FLOP/B"),
    ("peak_memory", "peak memory", "B"),
)


def show_simulation(
    run: Run, result: Simulation, by: str, as_json: bool, beside: bool = True
) -> None:
    """Print a simulation of execution traces; `beside`: and what ASTRA-sim would say."""
    summary = result.summary()
    other = _beside(run, result) if beside else None
    if as_json:
        named = {"schema_version": SCHEMA_VERSION, "workload": run.workload, "on": run.where}
        document: dict[str, Any] = named | summary
        if run.version is not None:
            document["simulator"] = str(run.version)
            document["stops"] = [stop.document() for stop in run.stops]
        if other is not None:
            document["astra_sim"] = other.document()
        if by == "rank":
            document["by_rank"] = [_rank_row(result, rank) for rank in _distinct(result)]
        print_json(document)
        return
    click.echo(heading(f"{run.workload} on {run.where}"))
    click.echo(
        f"{counted(summary['ranks'], 'rank')}, {summary['distinct_ranks']:,} of them distinct; "
        f"{counted(summary['nodes'], 'node')}"
        + ("; communication shares ports\n" if result.contention else "\n")
    )
    if result.together:
        remark(
            "note: too large to follow every message: members of some collectives, which ASTRA-sim "
            "ends one by one, end with the slowest"
        )
    if by == "rank":
        _print_ranks(result)
    else:
        for name, title, unit in SHOWN:
            value = summary[name]
            if value is None or (name == "cpu_time" and not value):
                continue
            nanoseconds = summary.get(f"{name}_nanoseconds")
            exact = "" if nanoseconds is None else f"  ({nanoseconds:,} ns)"
            click.echo(f"{title:<24}{_figure(value, unit)}{exact}")
    moved = dict(summary["collectives"])
    if summary["sent_count"]:
        moved["messages"] = {"count": summary["sent_count"], "bytes": summary["sent_bytes"]}
    print_collectives("all ranks", moved)
    if other is not None:
        click.echo(f"\n{other.line()}")


def _beside(run: Run, result: Simulation) -> Beside | None:
    """Return ASTRA-sim's answer beside that of our own models, where it has one."""
    from perfmodel.workloads.simulation.hardware_costs import HardwareCosts
    from perfmodel.workloads.twins.astra.beside import beside_astra_sim, worth_it

    if run.engine.name != "hardware" or run.traces is None or not worth_it(run.traces):
        return None
    if not isinstance(run.costs, HardwareCosts):
        return None
    try:
        return beside_astra_sim(run.traces, run.costs, result)
    except PerfModelError as error:
        detail(f"ASTRA-sim has no answer: {error}")
        return None


def check_outputs(output: str | None, timeline: str | None) -> None:
    """Make sure, before a long run, that what was asked for can be written."""
    from perfmodel.base.files import check_writable
    from perfmodel.store.files import check_results_path

    if output is not None:
        check_results_path(output)
    if timeline is not None:
        check_writable(timeline)


def write_figures(run: Run, result: Any, output: str) -> None:
    """Write figures, with what they are of."""
    from perfmodel.base.table import described
    from perfmodel.store.files import save_results
    from perfmodel.workloads.twins.datasets import run_dataset

    devices = "" if run.devices is None else f"{counted(run.devices, 'device')} "
    dataset = run_dataset(result)
    dataset.attrs |= described(
        "Run of a workload", SCHEMA_VERSION, workload=run.workload, on=f"{devices}{run.where}"
    )
    with activity(f"writing {output}"):
        save_results(dataset, output)
    remark(f"wrote {output}")


def write_tracks(traces: TraceSet, result: Simulation, timeline: str) -> None:
    """Write a timeline for Perfetto."""
    from perfmodel.workloads.simulation.result import write_simulation

    with activity(f"writing {timeline}"):
        written = write_simulation(traces, result, timeline)
    remark(f"wrote {timeline}: {written:,} operations; open it at https://ui.perfetto.dev")


def show_native(run: Run, result: NativeResult, by: str, as_json: bool) -> None:
    """Print a run of a text workload in its own training loop."""
    totals = {
        "total_time": result.total_ns * 1e-9,
        "compute_time": float(result.compute_ns.sum()) * 1e-9,
        # As the simulator's own sum: what it waits for at the end belongs to no layer.
        "exposed_communication": float(result.total_ns - result.compute_ns.sum()) * 1e-9,
        "communication_time": float(result.communication_ns.sum()) * 1e-9,
    }
    layers = _layer_rows(result)
    if as_json:
        print_json(
            {
                "schema_version": SCHEMA_VERSION,
                "workload": run.workload,
                **totals,
                "total_nanoseconds": result.total_ns,
                "pass_end": [float(end) * 1e-9 for end in result.pass_end_ns],
                "chunks": result.chunks,
                "payload_bytes": [int(size) for size in result.payload_bytes],
                "layers": layers,
            }
        )
        return
    click.echo(heading(f"{run.workload} as ASTRA-sim 1.0"))
    for name, value in totals.items():
        exact = f"  ({result.total_ns:,} ns)" if name == "total_time" else ""
        click.echo(f"{name.replace('_', ' '):<24}{format_time(value)}{exact}")
    sent = ", ".join(format_si(float(size), "B", even=True) for size in result.payload_bytes)
    click.echo(f"{'sent by dimension':<24}{sent}")
    if by == "layer":
        _print_layers(layers, ("compute", "exposed", "communication"))


def show_simai(run: Run, result: SimaiResult, by: str, as_json: bool) -> None:
    """Print a run of an AICB text in SimAI's categories."""
    parts = {
        "compute": result.compute,
        "exposed data parallel": result.data_parallel,
        "exposed expert data parallel": result.expert_data_parallel,
        "exposed tensor parallel": result.tensor_parallel,
        "exposed expert parallel": result.expert_parallel,
        "exposed pipeline parallel": result.pipeline_parallel,
        "pipeline bubble": result.bubble,
    }
    layers = _simai_rows(result) if by == "layer" else []
    if as_json:
        named = {key.replace(" ", "_"): value for key, value in parts.items()}
        print_json(
            {
                "schema_version": SCHEMA_VERSION,
                "workload": run.workload,
                "devices": run.devices,
                "on": run.where,
                "total_time": result.total,
                **named,
                "notes": list(result.notes),
            }
            | ({"layers": layers} if by == "layer" else {})
        )
        return
    click.echo(heading(f"{run.workload} on {counted(run.devices or 0, 'device')} {run.where}"))
    rows = [[name, format_time(value), share(value, result.total)] for name, value in parts.items()]
    click.echo(table(["", "time", "share"], [*rows, ["total", format_time(result.total), ""]]))
    if by == "layer":
        _print_layers(layers, ("compute", "exposed"))
    for note in result.notes:
        remark(f"note: {note}")


def _print_layers(layers: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    """Print times of layers; columns in which nothing takes time are left out."""
    shown = [
        (phase, column, f"{short} {column}")
        for phase, short in zip(PHASES, SHORT_PHASES, strict=True)
        for column in columns
        if any(row[phase][column] for row in layers)
    ]
    several = any("rows" in row for row in layers)
    headers = ["layer", *(["rows"] if several else []), *(text for _, _, text in shown)]
    cells = [
        [row["layer"], *([f"{row['rows']:,}"] if several else [])]
        + [format_time(row[phase][column]) for phase, column, _ in shown]
        for row in layers
    ]
    click.echo("\n" + table(headers, cells))


def _simai_rows(result: SimaiResult) -> list[dict[str, Any]]:
    """Return times of the rows of each name, added up [s], by first appearance."""
    import numpy as np

    names, first, where, counts = np.unique(
        result.name, return_index=True, return_inverse=True, return_counts=True
    )
    sums = {
        (phase, column): np.bincount(
            where, weights=getattr(getattr(result, phase), column), minlength=len(names)
        )
        for phase in PHASES
        for column in ("compute", "communication", "exposed")
    }
    rows: list[dict[str, Any]] = [
        {"layer": str(name), "rows": int(count)} | {phase: {} for phase in PHASES}
        for name, count in zip(names, counts, strict=True)
    ]
    for (phase, column), values in sums.items():
        for row, value in zip(rows, values, strict=True):
            row[phase][column] = float(value)
    return [rows[place] for place in np.argsort(first)]


def _layer_rows(result: NativeResult) -> list[dict[str, Any]]:
    """Return times of each layer [s]."""
    columns = {
        "compute": result.compute_ns,
        "exposed": result.exposed_ns,
        "communication": result.communication_ns,
    }
    return [
        {"layer": name, "collectives": int(result.collectives[i])}
        | {
            phase: {key: float(values[p, i]) * 1e-9 for key, values in columns.items()}
            for p, phase in enumerate(PHASES)
        }
        for i, name in enumerate(result.names)
    ]


def _distinct(result: Simulation) -> list[int]:
    """Return the ranks that were run."""
    return sorted({int(rank) for rank in result.representative})


def _rank_row(result: Simulation, rank: int) -> dict[str, Any]:
    """Return the figures of one rank."""
    row: dict[str, Any] = {"rank": rank, "stands_for": int((result.representative == rank).sum())}
    for name, _, _ in SHOWN:
        row[name] = float(getattr(result, name)[rank])
    return row


def _print_ranks(result: Simulation) -> None:
    """Print one line per distinct rank."""
    import numpy as np

    rows = []
    for rank in _distinct(result):
        row = _rank_row(result, rank)
        cells = [_figure(row[name], unit) for name, _, unit in SHOWN]
        rows.append([f"{rank} (×{row['stands_for']})", *cells])
    filled = [
        i for i, (name, _, _) in enumerate(SHOWN) if not np.isnan(getattr(result, name)).all()
    ]
    headers = ["rank", *(SHOWN[i][1] for i in filled)]
    click.echo(table(headers, [[row[0], *(row[i + 1] for i in filled)] for row in rows]))


def _figure(value: float, unit: str) -> str:
    """Return a figure with its unit; a dash where there is none."""
    if math.isnan(value):
        return "–"
    if unit == "s":
        return format_time(value)
    if unit == "%":
        return f"{100 * value:.2f} %"
    if unit == "B":
        return format_si(value, "B", even=True)
    return f"{value:,.1f} {unit}"


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
