"""``perfmodel serve``: operating points of a served model, and what is asked of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import StrategyError
from perfmodel.base.wings import wing_module
from perfmodel.cli.core import serve_options as served
from perfmodel.cli.core.serve_options import ASSUMED, deployment_axes, load_axes
from perfmodel.cli.group import EXIT_NOTHING_FITS, Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.costs import serving_cost_options, with_costs
from perfmodel.cli.shared.inputs import load_engines, load_rows, of_hardware
from perfmodel.cli.shared.launch_file import from_server_option
from perfmodel.cli.shared.models import say_remarks, served_model_option
from perfmodel.cli.shared.printing import detail, progress, remark
from perfmodel.cli.shared.workers import check_one, chosen_workers, worker_options
from perfmodel.serving.fields import LOAD_FIELD_BY_NAME

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.spec import ModelSpec
    from perfmodel.serving.grid import DeploymentGrid, LoadGrid
    from perfmodel.serving.requests import RequestTrace
    from perfmodel.sweeps.workers import Workers


@dataclass(frozen=True)
class Question:
    """What is projected.

    Attributes
    ----------
    model_name : str
        As it was typed.
    model : ModelSpec
    hardware : list of str
        As they were typed.
    rows : list of Hardware
    values : dict of str to list of float
        Swept values of each row.
    every, grid : DeploymentGrid
        All deployments that were asked for, and the possible ones.
    loads : LoadGrid
    method : str
        How points are closed.
    assumed : dict of str to value
        Options that nobody gave, with what was taken.
    settings, reading : mapping
        Values of ``--set``, and how the model was read.
    trace : RequestTrace or None
        What is replayed.
    clients : sequence of float
        Requests of the trace that are kept under way; empty where they come by themselves.
    """

    model_name: str
    model: ModelSpec
    hardware: list[str]
    rows: list[Hardware]
    values: dict[str, list[float]]
    every: DeploymentGrid
    grid: DeploymentGrid
    loads: LoadGrid
    method: str
    assumed: dict[str, Any]
    settings: Mapping[str, Any]
    reading: Mapping[str, Any]
    trace: RequestTrace | None
    clients: Sequence[float]

    @property
    def count(self) -> int:
        """Operating points."""
        return len(self.grid) * len(self.rows) * len(self.loads)

    @property
    def is_one(self) -> bool:
        """Whether one point was asked for."""
        return self.count == 1 and len(self.every) == 1

    @property
    def is_phase(self) -> bool:
        """Whether one phase was asked for, of a static batch."""
        return self.method in ("prefill", "decode")


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
        return "recursion" if problem.get("exact") else "closed"
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


@click.command("serve", cls=Command, short_help="Project a served model.")
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
    """Project a served model: time to first token, time per token, throughput, memory.

    A deployment is what runs where: engine, degrees, workers, formats. A load is what it is
    asked to do: lengths, and requests under way (--concurrency) or arriving per second (--rate).
    An option takes one value or a list; several make a grid of every combination, of which the
    best are shown, and those that no other beats in throughput per device and per user. Where
    --tp is not named, every degree that makes sense is tried. The result can be written to a
    netCDF file for 'perfmodel best' or any tool that reads netCDF.

    \b
    Examples:
      # One operating point: 64 requests under way on four H200
      perfmodel serve --model llama-3.1-70b --hardware dgx-h200 --tp 4 --isl 8192 --osl 1024 \\
          --concurrency 64

    \b
      # A grid, kept in a file
      perfmodel serve --model llama-3.1-70b --hardware dgx-h200 --engine vllm --tp 1,2,4,8 \\
          --isl 8192 --osl 1024 --concurrency 1:512:x2 -o serve.nc

    \b
      # Requests that arrive by themselves, drafts, a shared beginning of prompts, experts
      perfmodel serve --model deepseek-r1 --hardware gb200-nvl72 --engine sglang --tp 1 \\
          --dp-attention 8 --ep 8 --isl 1024 --osl 1024 --length-range 0.8 --rate 20 \\
          --prefix 512 --speculative mtp:2:0.8

    \b
      # Workers for prompts, others for answers: how many of each?
      perfmodel serve --model deepseek-r1 --hardware gb200-nvl72 --isl 8192 --osl 1024 \\
          --rate 20 --disaggregate --prefill tp=4,workers=1:8:8 \\
          --decode tp=1,ep=32,dp-attention=32,workers=1:8:8

    \b
      # Pass by pass, on four processes
      perfmodel serve --model llama-3.1-70b --hardware dgx-h200 --tp 1,2,4,8 --isl 8192 \\
          --osl 1024 --concurrency 1:512:x2 --exact --processes 4

    \b
      # What would requests that were recorded have met?
      perfmodel serve --model llama-3.1-8b --hardware dgx-h200 --tp 1,2 --replay requests.csv

    \b
      # The same, pass by pass, to be looked at in ui.perfetto.dev
      perfmodel serve --model llama-3.1-8b --hardware dgx-h200 --tp 2 --replay requests.csv \\
          --timeline passes.json

    \b
      # What a server that is started so would do
      perfmodel serve --from vllm_serve.sh --hardware dgx-h200 --isl 1024 --concurrency 32

    \b
      # Where does the time of a pass go? One phase of a batch that stays as it is
      perfmodel serve --model qwen3-32b --hardware dgx-h200 --tp 2 --concurrency 32 --explain
      perfmodel serve --model qwen3-32b --hardware dgx-h200 --tp 2 --phase decode --batch 1,8,64

    Units: times in seconds, memory in bytes with --json, lengths in tokens, rates per second.
    The time per output token leaves out the first token. '10–90 %' is the range in which four of
    five measured means should lie.

    Exit codes: 0 done, 1 failure, 2 wrong input or no possible deployment, 3 no operating point
    is possible (its cache holds no request, requests arrive faster than they are served, …).
    """
    from perfmodel.base.files import check_writable
    from perfmodel.cli.core import serve_output as shown
    from perfmodel.store.files import check_results_path, save_results, stored_size

    if output is not None:
        output = check_results_path(output)
    if timeline is not None:
        timeline = str(check_writable(timeline))
    check_one(processes, scheduler, PROCESSES)
    question = load_question(given, reading, problem)
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
    timelines = wing_module("perfmodel.report.timelines.serving")
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
