"""``perfmodel workload nodes``: what each node of a wafer does in a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import StrategyError
from perfmodel.cli.group import Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.models import model_option, say_remarks
from perfmodel.cli.shared.options import option
from perfmodel.cli.shared.printing import activity, remark
from perfmodel.cli.shared.wafer import (
    chosen_nodes,
    chosen_steps,
    given_system,
    system_options,
    tokens_options,
)

if TYPE_CHECKING:
    from perfmodel.model.spec import ModelSpec
    from perfmodel.parity.wse.nodes import Routed

PHASES = ("decode", "prefill", "both")
PARTS = "What is written"


@click.command("nodes", cls=Command, short_help="Write what each node of a wafer does.")
@model_option
@tokens_options
@option(
    "--routing",
    section=options.PROBLEM,
    default="",
    metavar="NAME|FILE.npz",
    help="Experts of tokens: uniform, two_level, empirical:FILE (counts per expert, such as "
    "bincounts.json), or a file with an array 'experts'.  [default: what the system says]",
)
@option(
    "--precision",
    section=options.PROBLEM,
    type=click.Choice(("fp16", "fp8")),
    default="fp16",
    show_default=True,
    help="Of weights, cache, activations and messages.",
)
@system_options
@option(
    "--phase",
    section=PARTS,
    type=click.Choice(PHASES),
    default="decode",
    show_default=True,
    help="Steps of decoding, the prompts, or both.",
)
@option(
    "--steps",
    section=PARTS,
    default="ends",
    show_default=True,
    metavar="LIST",
    help="Steps of decoding: all, ends, or numbers such as 0,9.",
)
@option(
    "--layers",
    section=PARTS,
    default="all",
    show_default=True,
    metavar="LIST",
    help="Names such as decode5,lm_head.",
)
@option(
    "--nodes",
    section=PARTS,
    default="all",
    show_default=True,
    metavar="LIST",
    help="Numbers such as 0-3,7.",
)
@option(
    "--compat",
    section=PARTS,
    type=click.Choice(["wse"]),
    help="The wafer workload generator's own tree of files, its oddities included.",
)
@options.output_option("FOLDER", "Folder that is written, made if need be.", required=True)
@options.verbosity_options
def nodes_command(
    model: str,
    reading: Mapping[str, Any],
    compat: str | None,
    output: str,
    **problem: Any,
) -> None:
    """Write what each node of a wafer does in prompts and steps of decoding.

    \b
    Examples:
      perfmodel workload nodes --model deepseek-v3 --system wafer.json --batch 1024 \\
          --isl 2048 --layers decode10 --routing empirical:bincounts.json --compat wse -o out
      perfmodel workload nodes --model llama-3-70b --tp 4 --sp 2 --isl 1024 --compat wse -o out
    """
    from perfmodel.model.presets import load_model

    spec = load_model(model, **reading)
    if compat is None:
        raise StrategyError("--compat wse is what there is so far")
    rows = _write_compat(output, spec, problem)
    say_remarks([spec])
    remark(f"wrote {rows:,} rows of nodes/, as many of graph/ without barriers, to {output}")


def _write_compat(folder: str, spec: ModelSpec, problem: Mapping[str, Any]) -> int:
    """Write the generator's tree; return its rows."""
    from perfmodel.parity.wse.run import run_nodes

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
            routing=_routing(problem["routing"], spec),
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

    routed = read_routing(words, experts[0].experts, experts[0].experts_per_token)
    return lambda step: routed
