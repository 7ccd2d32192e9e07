"""``perfmodel workload nodes``: what each node of a wafer does in a step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.group import Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.models import model_option, say_remarks
from perfmodel.cli.shared.options import option
from perfmodel.cli.shared.printing import activity, heading, print_json, remark
from perfmodel.cli.wafer.systems import (
    PARTS,
    chosen_nodes,
    chosen_steps,
    core_setting,
    elements_options,
    given_system,
    parts_options,
    system_options,
    tell_routing,
    tokens_options,
)

if TYPE_CHECKING:
    from perfmodel.model.spec import ModelSpec
    from perfmodel.wafer.twin.setting import Routed

PHASES = ("decode", "prefill", "both")


@click.command("nodes", cls=Command, short_help="Write what each node of a wafer does.")
@model_option
@tokens_options
@elements_options
@system_options
@parts_options(PHASES, "Steps of decoding, the prompts, or both.", "ends")
@option(
    "--compat",
    section=PARTS,
    type=click.Choice(["wse"]),
    help="The wafer workload generator's own tree of files, its oddities included.",
)
@option(
    "--graph/--no-graph",
    section=PARTS,
    default=True,
    show_default=True,
    help="Write the first step's graph (GraphML) and Chakra traces too.",
)
@option(
    "--save-routing",
    section=PARTS,
    type=click.Path(),
    metavar="FILE.npz",
    help="Write the experts of all tokens in all these steps, for --routing.",
)
@options.output_option("FOLDER", "Folder that is written, made if need be.", required=True)
@options.json_option
@options.verbosity_options
def nodes_command(
    model: str,
    reading: Mapping[str, Any],
    compat: str | None,
    output: str,
    as_json: bool,
    **problem: Any,
) -> None:
    """Write what each node of a wafer does in prompts and steps of decoding.

    One netCDF file, node x step x operation: multiply-adds, FLOP, footprint, bytes read and
    written (weights, cache, activations), sent and received; with the graph of the first step
    as GraphML and as Chakra traces. With --compat wse the generator's own files and counts.

    \b
    Examples:
      perfmodel workload nodes --model deepseek-v3 --system wafer.json --batch 1024 \\
          --isl 2048 --osl 10 --routing two_level -o out
      perfmodel workload nodes --model llama-3-70b --node-grid 2x4 --tp 4 --sp 2 --tp-ffn 8 \\
          --ep 1 --isl 1024 --phase prefill --no-graph -o out
      perfmodel workload nodes --model deepseek-v3 --system wafer.json --batch 1024 \\
          --isl 2048 --layers decode10 --routing empirical:bincounts.json --compat wse -o out
    """
    from perfmodel.model.presets import load_model

    spec = load_model(model, **reading)
    if compat is not None:
        rows = _write_compat(output, spec, problem)
        say_remarks([spec])
        if as_json:
            print_json({"output": output, "rows": rows})
        remark(f"wrote {rows:,} rows of nodes/, as many of graph/ without barriers, to {output}")
        return
    phases = ("prefill", "decode") if problem["phase"] == "both" else (problem["phase"],)
    if len(phases) > 1 and problem["save_routing"] is not None:
        raise click.UsageError("--save-routing: a file holds one phase, not both")
    if not (problem["save_routing"] or ".npz").endswith(".npz"):
        raise click.UsageError(
            f"--save-routing: should end in .npz, not '{problem['save_routing']}'"
        )
    found = {}
    for phase in phases:
        place = str(Path(output) / phase) if len(phases) > 1 else output
        found[phase] = _write_true(place, spec, phase, problem)
    say_remarks([spec])
    if as_json:
        print_json({"schema_version": "1", "output": output, "phases": found})
        return
    for phase, totals in found.items():
        click.echo(heading(f"{phase}, all nodes and steps"))
        for name, value in totals.items():
            click.echo(f"{name.replace('_', ' '):<22}{value:,.6g}")


def _write_true(
    folder: str, spec: ModelSpec, phase: str, problem: Mapping[str, Any]
) -> dict[str, float]:
    """Write the true node level of a phase; return totals."""
    from perfmodel.wafer.cores.routing import core_routing, write_routing
    from perfmodel.wafer.node_export import write_nodes
    from perfmodel.wafer.nodes.experts import DRAWN_TOKENS
    from perfmodel.wafer.nodes.rows import QUANTITIES

    system = given_system(problem, phase)
    setting = core_setting(spec, system, phase, problem)
    layers = None if problem["layers"] == "all" else problem["layers"].split(",")
    steps = chosen_steps(problem["steps"], problem["osl"]) if phase == "decode" else [0]
    routing = None
    if any(layer.experts for layer in spec.layers):
        words = problem["routing"] or system.routing
        most = DRAWN_TOKENS if problem["save_routing"] is None else None  # a file holds them all
        routing = core_routing(setting, words, problem["seed"], most)
        if most and setting.batch * setting.length > most and not words.endswith(".npz"):
            drawn = setting.batch * max(most // setting.batch, 1)
            remark(
                f"experts of {drawn:,} tokens are drawn in each layer and stand for all "
                f"{setting.batch * setting.length:,}; --save-routing draws them all"
            )
    for word in ("routing", "save_routing"):
        if problem[word] and routing is None:
            raise click.UsageError(f"--{word.replace('_', '-')}: {spec.name} has no experts")
    with activity("counting what nodes do"):
        written = write_nodes(
            folder,
            setting,
            steps,
            routing,
            layers=layers,
            nodes=chosen_nodes(problem["nodes"], system.nodes),
            graph=problem["graph"],
        )
    if problem["save_routing"] is not None and routing is not None:
        write_routing(problem["save_routing"], setting, routing, steps)
    tell_routing(problem, system)
    remark(f"wrote {', '.join(sorted({str(one.parent) for one in written.files}))}")
    totals = {name: float(written.table[name].values.sum()) for name in QUANTITIES}
    totals["footprint"] /= len(steps)
    sizes = {"operations": float(written.table.sizes["operation"]), "steps": float(len(steps))}
    return (
        sizes
        | totals
        | {"graph_vertices": float(written.vertices), "graph_edges": float(written.links)}
    )


def _write_compat(folder: str, spec: ModelSpec, problem: Mapping[str, Any]) -> int:
    """Write the generator's tree; return its rows."""
    from perfmodel.wafer.twin.run import run_nodes

    phase = problem["phase"]
    phases = ("prefill", "decode") if phase == "both" else (phase,)
    systems = {each: given_system(problem, each) for each in phases}
    count = min(system.nodes for system in systems.values())
    with activity("writing rows of nodes"):
        return run_nodes(
            folder,
            spec,
            systems,
            problem["batch"],
            problem["isl"],
            problem["osl"],
            phase=phase,
            steps=chosen_steps(problem["steps"], problem["osl"]),
            routing=_routing(problem["routing"] or "", spec),
            nodes=None if problem["nodes"] == "all" else chosen_nodes(problem["nodes"], count),
            layers=problem["layers"],
            speculative=problem["speculative"],
            precision=problem["precision"],
        )


def _routing(words: str, spec: ModelSpec) -> str | Routed:
    """Return the words of a distribution, or what a file holds for every step."""
    experts = [layer.mlp for layer in spec.layers if layer.experts]
    if not words.endswith(".npz") or not experts:
        return words
    from perfmodel.wafer.cores.routing import read_routing

    return read_routing(words, experts[0].experts, experts[0].experts_per_token)
