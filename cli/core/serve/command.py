"""``perfmodel serve``: a served model at one operating point, or over a grid of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.wings import wing_module
from perfmodel.cli.core.serve import options as served
from perfmodel.cli.core.serve.problem import Question, load_question
from perfmodel.cli.group import EXIT_NOTHING_FITS, Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.costs import serving_cost_options, with_costs
from perfmodel.cli.shared.models import served_model_option
from perfmodel.cli.shared.printing import detail, progress, remark
from perfmodel.cli.shared.served_launch import from_server_option
from perfmodel.cli.shared.types import WholeRange
from perfmodel.cli.shared.workers import check_one, chosen_workers, worker_options

if TYPE_CHECKING:
    from perfmodel.sweeps.workers import Workers

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
@options.option(
    "--top",
    section=options.OUTPUT,
    type=WholeRange(1),
    metavar="N",
    help="Operating points of a grid to show, or operations of --explain.  "
    f"[default: {TOP_POINTS}, or {TOP_OPERATIONS}]",
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
    from perfmodel.cli.core.serve import output as shown
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
