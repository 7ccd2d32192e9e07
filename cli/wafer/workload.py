"""``perfmodel workload nodes`` and ``cores``: what nodes and cores of a wafer do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.shared import options
from perfmodel.cli.shared.models import model_option, reading_options, say_remarks
from perfmodel.cli.shared.options import options_of, page
from perfmodel.cli.shared.printing import activity, heading, print_json, remark
from perfmodel.cli.shared.types import One, Paths
from perfmodel.cli.wafer.options import (
    BYTES,
    asked_steps,
    chosen_layers,
    chosen_nodes,
    chosen_steps,
    core_setting,
    elements_options,
    given_system,
    system_options,
    tell_routing,
    tokens_options,
)

# ``perfmodel workload nodes``: what each node of a wafer does in a step.

if TYPE_CHECKING:
    from perfmodel.model.spec import ModelSpec
    from perfmodel.wafer.twin.setting import Routed


@click.command("nodes", **page("wafer", "workload nodes", "Write what each node of a wafer does."))
@model_option
@tokens_options
@elements_options
@system_options
@options_of("wafer.nodes", "phase", "steps")
@options_of("wafer.parts", "layers", "nodes")
@options_of("wafer.nodes", "compat")
@options_of("wafer.nodes", "graph", show_default=True)
@options_of("wafer.nodes", "save_routing")
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
    """Write what each node of a wafer does in prompts and steps of decoding."""
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
    from perfmodel.cli.wafer.node_traces import write_node_traces
    from perfmodel.wafer.export import write_nodes
    from perfmodel.wafer.nodes.rows import QUANTITIES
    from perfmodel.wafer.nodes.workload import DRAWN_TOKENS
    from perfmodel.wafer.routing import core_routing, write_routing

    system = given_system(problem, phase)
    setting = core_setting(spec, system, phase, problem)
    steps = asked_steps(problem, phase)
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
            layers=chosen_layers(problem["layers"]),
            nodes=chosen_nodes(problem["nodes"], system.nodes),
            graph=problem["graph"],
        )
        files = list(written.files)
        if problem["graph"]:
            files += write_node_traces(folder, setting, written)
    if problem["save_routing"] is not None and routing is not None:
        write_routing(problem["save_routing"], setting, routing, steps)
    tell_routing(problem, system)
    remark(f"wrote {', '.join(sorted({str(one.parent) for one in files}))}")
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
    from perfmodel.wafer.routing import read_routing

    return read_routing(words, experts[0].experts, experts[0].experts_per_token)


# ``perfmodel workload cores``: instructions of the cores of a wafer.

if TYPE_CHECKING:
    from perfmodel.wafer.export import Written

SCHEMA_VERSION = "1"
STATED = ("phase", "batch", "input_length", "speculative")
ELEMENTS = ("weight_bytes", "activation_bytes", "cache_bytes")


@click.command("cores", **page("wafer", "workload cores", "Write instructions of a wafer's cores."))
@click.argument("folder", metavar="FOLDER", type=click.Path())
@options_of("wafer.cores", "model", type=One(Paths()))
@reading_options
@tokens_options
@elements_options
@system_options
@options_of("wafer.cores", "phase", "steps")
@options_of("wafer.parts", "layers", "nodes")
@options_of("wafer.cores", "form", "compat", "bank_size", "tiling")
@options.json_option
@options.verbosity_options
def cores_command(
    folder: str,
    model: str | None,
    reading: dict[str, Any],
    compat: str | None,
    as_json: bool,
    **problem: Any,
) -> None:
    """Write what each core of a wafer does, into FOLDER."""
    if compat is not None:
        _write_compat_cores(folder, model, problem, as_json)
        return
    if problem["tiling"] is not None:
        raise click.UsageError("--tiling belongs to --compat wse: tiles are searched for otherwise")
    from perfmodel.model.presets import load_model
    from perfmodel.wafer.cores.expert_routes import Routes
    from perfmodel.wafer.export import FORMS, setting_of_nodes, write_cores
    from perfmodel.wafer.routing import core_routing
    from perfmodel.wafer.setting import check_layers

    if model is None:
        stated = setting_of_nodes(folder)
        if stated is None:
            raise click.UsageError("Missing option '--model', and FOLDER has no nodes.nc")
        setting = stated
        system = setting.system
    else:
        system = given_system(problem, problem["phase"])
        setting = core_setting(load_model(model, **reading), system, problem["phase"], problem)
    if problem["bank_size"] is not None:
        setting = replace(setting, bank_size=problem["bank_size"])
    wanted = check_layers(setting, chosen_layers(problem["layers"]))
    routing = problem["routing"] or system.routing
    with activity("writing instructions"):
        written = write_cores(
            folder,
            setting,
            Routes(setting, core_routing(setting, routing, problem["seed"])),
            nodes=chosen_nodes(problem["nodes"], system.nodes),
            steps=asked_steps(problem, setting.phase),
            layers=wanted,
            forms=FORMS if problem["form"] == "both" else [problem["form"]],
            attributes={
                "model": setting.model.name,
                **{name: getattr(setting, name) for name in STATED},
                "routing": routing,
                "seed": problem["seed"],
                **{name: getattr(setting, name) for name in ELEMENTS},
            },
        )
    tell_routing(problem, system)
    _say(written, as_json)


def _say(written: Written, as_json: bool) -> None:
    from perfmodel.base.units import format_size
    from perfmodel.cli.shared.printing import table
    from perfmodel.wafer.cores.instructions import OPCODES

    if as_json:
        print_json(
            {
                "schema_version": SCHEMA_VERSION,
                "instructions": dict(zip(OPCODES, written.counts.tolist(), strict=True)),
                "bytes": dict(zip(OPCODES, written.moved.tolist(), strict=True)),
                "macs": written.macs,
                "executed_macs": written.executed,
                "occupancy": written.occupancy,
                "bytes_times_links": written.links,
            }
        )
        return
    rows = [
        [name, f"{count:,}", format_size(size) if size else ""]
        for name, count, size in zip(
            OPCODES, written.counts.tolist(), written.moved.tolist(), strict=True
        )
    ]
    click.echo(table(["instruction", "count", "bytes"], rows))
    click.echo(f"multiply-adds: {written.macs:,} asked for, {written.executed:,} in products")
    click.echo(f"useful multiply-adds / (cores x the busiest core's): {written.occupancy:.4f}")
    click.echo(f"bytes x links of the mesh: {written.links:,}")


def _write_compat_cores(
    folder: str, model: str | None, problem: Mapping[str, Any], as_json: bool
) -> None:
    """Write the generator's instructions of a tree that is there."""
    if model is not None:
        raise click.UsageError("--model: with --compat wse the nodes in FOLDER say the model")
    if problem["phase"] != "decode":
        raise click.UsageError("--phase: the generator has instructions of decoding only")
    from perfmodel.wafer.generator_files import read_tiling
    from perfmodel.wafer.twin.core_lines import DEFAULT_TILING
    from perfmodel.wafer.twin.run import write_traces

    step, tiling, nodes = (
        problem["steps"].removeprefix("decode"),
        problem["tiling"],
        problem["nodes"],
    )
    if not (step.isascii() and step.isdigit()):
        raise click.UsageError(
            f"--steps: with --compat wse one step, such as 0, not '{problem['steps']}'"
        )
    system = given_system(problem, "decode")
    with activity("writing instructions"):
        lines = write_traces(
            folder,
            f"decode{step}",
            system,
            element_bytes=int(BYTES[problem["precision"]]),
            tiling=DEFAULT_TILING if tiling is None else read_tiling(tiling),
            layers=chosen_layers(problem["layers"]),
            nodes=None if nodes == "all" else chosen_nodes(nodes, system.nodes),
        )
    if as_json:
        print_json({"schema_version": SCHEMA_VERSION, "lines": lines})
    else:
        remark(f"{lines:,} instructions of {system.nodes} nodes")
