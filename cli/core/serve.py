"""``perfmodel serve``: operating points of a served model, and what is asked of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import StrategyError
from perfmodel.base.served_fields import LOAD_FIELD_BY_NAME
from perfmodel.base.wings import wing_module
from perfmodel.cli.core import serve_options as served
from perfmodel.cli.core.serve_options import ASSUMED, Question, deployment_axes, load_axes
from perfmodel.cli.group import EXIT_NOTHING_FITS
from perfmodel.cli.shared import options
from perfmodel.cli.shared.costs import serving_cost_options, with_costs
from perfmodel.cli.shared.inputs import check_acts, load_engines, load_rows, of_hardware
from perfmodel.cli.shared.launch_file import from_server_option
from perfmodel.cli.shared.models import say_remarks, served_model_option
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import detail, progress, remark
from perfmodel.cli.shared.workers import check_one, chosen_workers, worker_options

if TYPE_CHECKING:
    from perfmodel.serving.grid import DeploymentGrid, LoadGrid
    from perfmodel.sweeps.workers import Workers


def load_question(
    given: Mapping[str, Any], reading: Mapping[str, Any], problem: Mapping[str, Any]
) -> Question:
    """Load and check everything about a projection, cheapest first.

    Parameters
    ----------
    given : mapping of str to value
        Options of deployments and loads (`perfmodel.cli.core.serve_options.GIVEN`).
    reading : mapping
        How the model is read.
    problem : mapping of str to value
        The other options.

    Raises
    ------
    click.UsageError
        Options that exclude each other, or a load that nothing says.
    StrategyError
        No deployment is possible.
    """
    from perfmodel.base.units import format_si
    from perfmodel.model.presets import load_model
    from perfmodel.serving.enumerate import describe_rejected, load_grid, serving_grid
    from perfmodel.serving.grid import joined
    from perfmodel.serving.requests import read_requests
    from perfmodel.sweeps.serving_replay import trace_loads

    loads = load_axes(given)
    method = _method(problem, loads, given)
    if problem.get("phase"):
        loads["concurrency"] = problem["batch"]
    axes = deployment_axes(given)
    spec = load_model(problem["model"], mtp="stated", **reading)
    say_remarks([spec])
    parameters = format_si(float(spec.without_mtp().parameter_count()))
    detail(f"model {spec.name}: {parameters} parameters in {spec.num_layers:,} layers")
    settings, swept = problem["settings"], problem["swept"]
    rows, values = load_rows(problem["hardware"], of_hardware(settings), of_hardware(swept))
    engines = load_engines(problem["engine"], settings, swept)
    trace = None
    if problem.get("replay"):
        trace = read_requests(problem["replay"])
        asked = trace_loads(trace, loads.get("concurrency", ()))
        detail(f"trace of {len(trace):,} requests in {trace.arrival[-1] - trace.arrival[0]:,.0f} s")
    else:
        asked = load_grid(**loads)
    every = joined(
        [
            serving_grid(spec, rows, engine=engines, devices=limit, keep_impossible=True, **some)
            for limit in problem["devices"] or [None]
            for some in axes
        ]
    )
    possible = every.take(every.status == 0)
    if not len(possible):
        limits = problem["devices"] or [None]
        raise StrategyError(
            describe_rejected(every.status, limits[0] if len(limits) == 1 else None)
        )
    assumed: dict[str, Any] = {} if problem["engine"] else {"engine": engines[0].name}
    for field in (LOAD_FIELD_BY_NAME[name] for name in ASSUMED):
        if given.get(field.name) is None and trace is None:
            assumed[field.option] = field.default
    return Question(
        problem["model"],
        spec,
        problem["hardware"],
        rows,
        values,
        every,
        possible,
        asked,
        method,
        assumed,
        settings,
        reading,
        trace,
        loads.get("concurrency", ()) if trace is not None else (),
    )


def _method(problem: Mapping[str, Any], loads: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Return how points are closed."""
    phase, batch = problem.get("phase"), problem.get("batch")
    flows = [name for name in ("concurrency", "arrival_rate") if name in loads]
    if problem.get("replay"):
        others = [field.option for field in LOAD_FIELD_BY_NAME.values() if field.name in loads]
        others = [name for name in others if name != "concurrency"]
        others += [name for name in ("phase", "batch", "exact") if problem.get(name)]
        if others:
            raise click.UsageError(f"--replay takes its load from the trace; drop --{others[0]}")
        if _pools(given):
            raise click.UsageError("--replay runs on one pool; drop --disaggregate and its pools")
        return "replay"
    if (phase is None) != (batch is None):
        raise click.UsageError("--phase and --batch go together: a phase of a static batch")
    if phase is None:
        if not flows:
            raise click.UsageError(
                "--concurrency (requests under way) or --rate (requests per second) is needed, "
                "or --phase with --batch"
            )
        if problem.get("exact") and ("arrival_rate" in flows or _pools(given)):
            raise click.UsageError("--exact takes closed loops (--concurrency) on one pool")
        return "recursion" if problem.get("exact") else "auto"
    if flows:
        raise click.UsageError("--batch is what --phase runs; drop --concurrency and --rate")
    if problem.get("exact") or any(
        given.get(name) for name in ("disaggregate", "prefill", "decode")
    ):
        raise click.UsageError("--phase runs on one pool, without a scheduler; drop the others")
    return str(phase)


def _pools(given: Mapping[str, Any]) -> bool:
    """Tell whether two pools are asked for."""
    return any(given.get(name) for name in ("disaggregate", "prefill", "decode"))


TOP_POINTS, TOP_OPERATIONS = 5, 15
PROCESSES = "--processes"  # workers are a deployment's


@click.command("serve", **page("core", "serve", "Project a served model."))
@from_server_option
@served_model_option
@options.hardware_options
@served.load_options
@served.deployment_options
@served.pool_options
@served.phase_options
@options.set_option
@options.sweep_option
@serving_cost_options
@options.config_option
@served.exact_option
@served.replay_option
@options.results_option("Write all operating points")
@options.options_of(
    "core.serve", "top", words={"points": str(TOP_POINTS), "operations": str(TOP_OPERATIONS)}
)
@served.explain_option
@served.timeline_option
@worker_options("Project the grid", processes=PROCESSES)
@options.json_option
@options.verbosity_options
@served.collected
@click.pass_context
def serve_command(
    ctx: click.Context,
    reading: Mapping[str, Any],
    given: Mapping[str, Any],
    costs: Mapping[str, Any],
    output: str | None,
    top: int | None,
    explain: bool,
    timeline: str | None,
    processes: int | None,
    scheduler: str | None,
    as_json: bool,
    **problem: Any,
) -> None:
    """Project a served model: time to first token, time per token, throughput, memory."""
    from perfmodel.base.files import check_writable
    from perfmodel.cli.core import serve_output as shown
    from perfmodel.store.files import check_results_path, save_results, stored_size

    if output is not None:
        output = check_results_path(output)
    if timeline is not None:
        timeline = str(check_writable(timeline))
    check_one(processes, scheduler, PROCESSES)
    question = load_question(given, reading, problem)
    check_points(question.grid, question.loads, question.method, bool(costs or output))
    if timeline is not None and not question.is_one:
        raise click.UsageError("--timeline takes one point; name one value of each option")
    with chosen_workers(processes, scheduler, PROCESSES) as workers:
        table = _table(question, costs, workers)
    if output is not None:
        save_results(table, output)
    if question.is_one:
        possible = shown.print_point(question, table, top or TOP_OPERATIONS, explain, as_json)
    elif explain:
        raise click.UsageError("--explain takes one point; name one value of each option")
    else:
        possible = shown.print_grid(question, table, top or TOP_POINTS, as_json, output)
    if timeline is not None and possible:
        _write_passes(question, timeline)
    if output is not None:
        remark(f"\nwrote {output} ({stored_size(output) / 1e6:.1f} MB)")
    if not possible:
        click.echo(shown.nothing_possible(table), err=True)
        ctx.exit(EXIT_NOTHING_FITS)
    if not as_json:
        shown.suggest(question, table, output, explain)


def check_points(grid: DeploymentGrid, loads: LoadGrid, method: str, costed: bool) -> None:
    """Refuse numbers of the hardware that change no operating point, a trace's taken as a rate."""
    from perfmodel.analysis.acting import serving_results

    stated = click.get_current_context().params
    method = "closed" if method in ("replay", "recursion") else method
    results = serving_results(grid, loads, method, {} if costed else None)
    swept = stated.get("swept", {})
    check_acts(stated["hardware"], stated["settings"], swept, results, costed=costed)


def _table(question: Question, costs: Mapping[str, Any], workers: Workers | None) -> Any:
    """Project all operating points."""
    from perfmodel.sweeps.serving import serve_table
    from perfmodel.sweeps.serving_replay import replay_table

    start = time.perf_counter()
    count = question.count
    with progress(count, "operating points") as advance:
        if question.trace is not None:
            table = replay_table(
                question.grid,
                question.trace,
                question.rows,
                concurrency=question.clients,
                hardware_values=question.values,
                progress=advance,
                workers=workers,
            )
        else:
            table = serve_table(
                question.model,
                question.grid,
                question.loads,
                question.rows,
                method=question.method,
                hardware_values=question.values,
                progress=advance,
                workers=workers,
            )
    detail(f"projected {count:,} operating points in {time.perf_counter() - start:.2f} s")
    return with_costs(table, costs)


def _write_passes(question: Question, path: str) -> None:
    """Write the passes of the one operating point that was asked for."""
    timelines = wing_module("perfmodel.serving.timeline")
    write_tracks = wing_module("perfmodel.cli.report.timeline").write_tracks
    if question.is_phase:
        raise click.UsageError("--timeline needs a sequence of passes; --phase runs one alone")
    if question.trace is None:
        found = timelines.serving_timeline(question.grid, question.loads, question.rows[0])
    else:
        clients = int(question.clients[0]) if question.clients else None
        found = timelines.replay_timeline(
            question.grid, question.trace, question.rows[0], concurrency=clients
        )
    if found.note:
        remark(f"note: {found.note}")
    write_tracks(path, found.write)
