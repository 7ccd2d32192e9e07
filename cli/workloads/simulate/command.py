"""``perfmodel simulate``: run a workload on a network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import StrategyError
from perfmodel.cli.group import Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.combinations import typed_options
from perfmodel.cli.shared.printing import activity, detail, remark
from perfmodel.cli.shared.types import WholeRange
from perfmodel.cli.workloads.simulate.modes import show_modes
from perfmodel.cli.workloads.simulate.output import (
    check_outputs,
    show_native,
    show_simai,
    show_simulation,
    write_figures,
    write_tracks,
)
from perfmodel.cli.workloads.workload.convert import input_options
from perfmodel.workloads.twins.astra.versions import SIMULATOR

if TYPE_CHECKING:
    from perfmodel.workloads.twins.engines import Choice

ASTRA, MACHINE, SIMAI = "As ASTRA-sim", "On hardware", "As SimAI-Analytical"
# Engine -> what shows its result; those of execution traces show the same.
SHOW: dict[str, Callable[..., None]] = {
    "loop": show_native,
    "loop physical": show_modes,
    "AICB on hardware": show_simai,
    "SimAI": show_simai,
}


@click.command("simulate", cls=Command, short_help="Run a workload on a network.")
@click.argument("workload", metavar="WORKLOAD", type=click.Path())
@input_options
@options.option(
    "--network",
    section=ASTRA,
    metavar="FILE",
    type=click.Path(),
    help="network.yml; or the network's JSON of ASTRA-sim 1.0, for a text workload.",
)
@options.option(
    "--system",
    section=ASTRA,
    metavar="FILE",
    type=click.Path(),
    help="system.json; or the system text of ASTRA-sim 1.0.",
)
@options.option(
    "--model",
    section=ASTRA,
    type=click.Choice(["exact", "physical"]),
    default="exact",
    show_default=True,
    help="exact: to the nanosecond as ASTRA-sim, its simplifications included. physical: our "
    "own collectives on the same network.",
)
@options.option(
    "--engine",
    section=ASTRA,
    type=click.Choice(["congestion-unaware", "congestion-aware"]),
    default="congestion-unaware",
    show_default=True,
    help="Which of its backends is repeated.",
)
@options.option(
    "--simulator",
    section=ASTRA,
    metavar="NAME[@VERSION]",
    default=SIMULATOR,
    show_default=True,
    help="Which state of it: astra-sim@af2492b (April 2025) or astra-sim@main (518bd51, March "
    "2026), which is the default.",
)
@options.option(
    "--strict",
    section=ASTRA,
    is_flag=True,
    help="Stop, with exit code 2, where it would not end well: where it refuses the files, "
    "aborts, never ends or loses its statistics. Without, a warning says so.",
)
@options.option(
    "--issue-order",
    section=ASTRA,
    type=click.Choice(["identifier", "hash"]),
    default="identifier",
    show_default=True,
    help="Which of a rank's ready nodes begins first; hash: as before April 2025.",
)
@options.option(
    "--queues-per-dimension",
    section=ASTRA,
    type=WholeRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Of ASTRA-sim 1.0.",
)
@options.one_hardware_option(
    section=MACHINE,
    text="Hardware profile ('perfmodel hardware list') whose network and device run the traces.",
)
@options.set_option
@options.option(
    "--precision",
    section=MACHINE,
    default="bf16",
    show_default=True,
    help="Matrix rate of the device at which operations run.",
)
@options.option(
    "--compute",
    section=MACHINE,
    type=click.Choice(["auto", "recorded", "roofline"]),
    default="auto",
    show_default=True,
    help="How long computation lasts: as the trace records it, the roofline of its operations "
    "and bytes, or (auto) the roofline only where no time is recorded.",
)
@options.option(
    "--streams",
    section=MACHINE,
    type=click.Choice(["per-group", "one"]),
    default="per-group",
    show_default=True,
    help="Communication of different groups side by side, as in NCCL, or one after another.",
)
@options.option(
    "--contention",
    section=MACHINE,
    is_flag=True,
    help="Communication that runs at the same time shares the ports of its devices, max-min "
    "fairly. Without, it takes the time that it takes alone.",
)
@options.option(
    "--astra-sim/--no-astra-sim",
    "beside",
    section=MACHINE,
    default=True,
    show_default=True,
    help="Also say what ASTRA-sim would on the same network, and why (up to 100,000 nodes).",
)
@options.option(
    "--virtual-pipeline",
    section=MACHINE,
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    metavar="N",
    help="Model chunks per pipeline stage of an AICB text, whose header has layers in their place.",
)
@options.option(
    "--gpu-type",
    section=SIMAI,
    metavar="NAME",
    help="A100, A800, H100, H800 or H20: runs an AICB text as SimAI-Analytical does.",
)
@options.option(
    "--nic-type",
    section=SIMAI,
    default="CX7",
    show_default=True,
    metavar="NAME",
    help="CX6, CX7 or BF3.",
)
@options.option(
    "--gpus-per-server",
    section=SIMAI,
    type=WholeRange(1),
    default=8,
    show_default=True,
    metavar="N",
    help="Devices of a server.",
)
@options.option(
    "--nics-per-server",
    section=SIMAI,
    type=WholeRange(1),
    default=8,
    show_default=True,
    metavar="N",
    help="Network adapters of a server.",
)
@options.option(
    "--by",
    section=options.OUTPUT,
    type=click.Choice(["run", "rank", "layer"]),
    default="run",
    show_default=True,
    help="Lines of the table: the whole run, every distinct rank, or every layer of a text.",
)
@options.results_option("Write all figures of all ranks")
@options.option(
    "--timeline",
    section=options.OUTPUT,
    metavar="FILE.json",
    type=click.Path(),
    help="Write a timeline of the distinct ranks for ui.perfetto.dev.",
)
@options.json_option
@options.verbosity_options
def simulate_command(
    workload: str,
    by: str,
    output: str | None,
    timeline: str | None,
    beside: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Run a workload, driven by its dependencies, on a network.

    Chakra traces, ASTRA-sim text, FlexFlow task graphs and PyTorch traces run with
    --network and --system as in ASTRA-sim, or with --hardware on our own models. An ASTRA-sim
    text with the files of ASTRA-sim 1.0 runs its own training loop, layer by layer. An AICB
    text with --gpu-type runs as SimAI-Analytical, with --hardware on our own network model.

    Ranks that behave alike are run once. Exposed communication is wall time without
    computation, waiting included, as ASTRA-sim reports it.

    \b
    Examples:
      perfmodel simulate traces/stage --network network.yml --system system.json
      perfmodel simulate traces/llama --hardware dgx-h100 --timeline timeline.json
      perfmodel simulate DLRM_HybridParallel.txt --devices 8 --network network.yml \\
          --system system.json --model physical
      perfmodel simulate gpt3.txt --network hierarchical.json --system system.txt --by layer
      perfmodel simulate workload.txt --devices 512 --gpu-type A100 --nic-type CX6
    """
    from perfmodel.workloads.twins.engines import OPTION_NAMES, choose_engine

    check_outputs(output, timeline)
    typed = {name: value for name, value in typed_options().items() if name in OPTION_NAMES}
    choice = choose_engine(workload, **typed)
    detail(f"{workload}: {choice.kind}")
    if by not in ("run", choice.engine.lines):
        raise StrategyError(_no_lines(choice, by))
    with activity(f"reading {workload}") as tell:
        run = choice.prepare(tell)
    for note in run.notes:
        remark(f"note: {note}")
    if run.version is not None:
        for stop in run.stops:
            remark(f"warning: {stop.line(run.version)}")
    with activity(run.doing):
        result = run.compute()
    if output is not None:
        write_figures(run, result, output)
    if timeline is not None and run.traces is not None:
        write_tracks(run.traces, result, timeline)
    show = SHOW.get(run.engine.name, partial(show_simulation, beside=beside))
    show(run, result, by, as_json)


def _no_lines(choice: Choice, by: str) -> str:
    """Return why a result cannot be shown by rank, or by layer."""
    if by == "layer":
        return (
            "--by layer is for ASTRA-sim texts with the files of ASTRA-sim 1.0 and for AICB "
            "texts; traces have --by rank"
        )
    texts = "AICB texts" if choice.kind == "aicb-text" else "text workloads"
    return f"--by rank is for execution traces; {texts} have --by layer"
