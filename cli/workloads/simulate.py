"""``perfmodel simulate``: run a workload on a network."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import StrategyError
from perfmodel.cli.shared import options
from perfmodel.cli.shared.inputs import check_acts
from perfmodel.cli.shared.launch_file import typed_options
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import activity, detail, remark
from perfmodel.cli.workloads.simulated import (
    check_outputs,
    show_modes,
    show_native,
    show_simai,
    show_simulation,
    write_figures,
    write_tracks,
)
from perfmodel.cli.workloads.workload_traces import input_options
from perfmodel.workloads.twins.astra.versions import SIMULATOR

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.workloads.twins.engines import Choice

# Engine -> what shows its result; those of execution traces show the same.
SHOW: dict[str, Callable[..., None]] = {
    "loop": show_native,
    "loop physical": show_modes,
    "AICB on hardware": show_simai,
    "SimAI": show_simai,
}


@click.command("simulate", **page("workloads", "simulate", "Run a workload on a network."))
@click.argument("workload", metavar="WORKLOAD", type=click.Path())
@input_options
@options.options_of("workloads.simulate", "network", "system", "model", "engine")
@options.options_of("workloads.simulate", "simulator", default=SIMULATOR)
@options.options_of("workloads.simulate", "strict", "issue_order", "queues_per_dimension")
@options.one_hardware_option(
    section="On hardware",
    text="Hardware profile ('perfmodel hardware list') whose network and device run the traces.",
)
@options.set_option
@options.options_of(
    "workloads.simulate", "precision", "compute", "streams", "contention", "astra_sim"
)
@options.options_of("workloads.simulate", "virtual_pipeline", type=click.IntRange(1, 10000))
@options.options_of(
    "workloads.simulate", "gpu_type", "nic_type", "gpus_per_server", "nics_per_server", "by"
)
@options.results_option("Write all figures of all ranks")
@options.options_of("workloads.simulate", "timeline")
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
    """Run a workload, driven by its dependencies, on a network."""
    from perfmodel.workloads.twins.engines import OPTION_NAMES, choose_engine

    check_outputs(output, timeline)
    typed = {name: value for name, value in typed_options().items() if name in OPTION_NAMES}
    choice = choose_engine(workload, **typed)
    detail(f"{workload}: {choice.kind}")
    if by not in ("run", choice.engine.lines):
        raise StrategyError(_no_lines(choice, by))
    with activity(f"reading {workload}") as tell:
        run = choice.prepare(tell)
    if settings := typed.get("settings"):
        check_acts([str(typed["hardware"])], settings, {}, partial(_results, workload, typed))
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


def _results(
    workload: str, typed: Mapping[str, Any], rows: list[Hardware], most: int
) -> list[object]:
    """Run a workload on each of some profiles."""
    from perfmodel.workloads.twins.engines import choose_engine

    given = [{**typed, "hardware": row, "settings": None} for row in rows]
    return [pickle.dumps(choose_engine(workload, **it).prepare(None).compute()) for it in given]


def _no_lines(choice: Choice, by: str) -> str:
    """Return why a result cannot be shown by rank, or by layer."""
    if by == "layer":
        return (
            "--by layer is for ASTRA-sim texts with the files of ASTRA-sim 1.0 and for AICB "
            "texts; traces have --by rank"
        )
    texts = "AICB texts" if choice.kind == "aicb-text" else "text workloads"
    return f"--by rank is for execution traces; {texts} have --by layer"
