"""``perfmodel workload stage``: the traces of the STAGE generator, from its own arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from perfmodel.cli.group import Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.printing import activity
from perfmodel.cli.workloads.workload.astra_sim import hardware_options, machine_of, write_for
from perfmodel.cli.workloads.workload.written import traces_output, write_traces_to

Function = TypeVar("Function", bound=Callable[..., Any])
COUNTS = (
    "STAGE counts a multiply-add as one operation and an element as one byte: halve peak-perf, "
    "local-mem-bw and bandwidth for numbers of 16 bits"
)
DEGREES, MODEL = "Degrees", "Model (defaults: the generator's)"
# Generator's spelling: section, meaning.
WORDS = {
    "dp": (DEGREES, "Data parallelism."),
    "tp": (DEGREES, "Tensor parallelism."),
    "pp": (DEGREES, "Pipeline parallelism."),
    "sp": (DEGREES, "Parallelism over the sequence."),
    "weight-sharded": (DEGREES, "0 or 1: store weights in shards, gather them before use."),
    "activation-recompute": (DEGREES, "0 or 1: compute q, k, v, scores and ffn1 again."),
    "din": (MODEL, "Width ahead of the input embedding: the vocabulary."),
    "dout": (MODEL, "Width behind the output embedding: the vocabulary."),
    "dmodel": (MODEL, "Hidden size."),
    "dff": (MODEL, "Inner size of the feed-forward layers."),
    "head": (MODEL, "Heads."),
    "seq": (MODEL, "Tokens of a sequence."),
    "batch": (MODEL, "Sequences."),
    "num-stacks": (MODEL, "Layers."),
}


def stage_options(function: Function) -> Function:
    """Add the generator's arguments, with - or _ between words."""
    return options.stack(
        *(
            options.option(
                f"--{word}",
                *([f"--{word.replace('-', '_')}"] if "-" in word else []),
                word.replace("-", "_"),
                section=section,
                metavar="N",
                help=text,
            )
            for word, (section, text) in WORDS.items()
        )
    )(function)


@click.command("stage", cls=Command, short_help="Write what the STAGE generator writes.")
@stage_options
@hardware_options
@traces_output
@options.verbosity_options
def stage_command(
    simulator: str | None,
    hardware: str | None,
    settings: Mapping[str, Any],
    output: str,
    json_traces: bool,
    **words: str | None,
) -> None:
    """Write the Chakra traces of a transformer's training step as STAGE generates them.

    The same arguments give the same operations, sizes, communicator groups and
    dependencies. STAGE counts a multiply-add as one operation and an element as one byte.

    \b
    Examples:
      perfmodel workload stage --dp 4 --tp 2 --sp 2 --num-stacks 80 --dmodel 8192 \\
          --dff 28672 --head 64 --seq 4096 --batch 64 --din 32000 --dout 32000 -o traces/stage
      perfmodel simulate traces/stage --network network.yml --system system.json
      perfmodel workload stage --dp 8 --num-stacks 2 --for astra-sim --hardware dgx-h100 -o stage
    """
    from perfmodel.workloads.twins.stage.arguments import stage_arguments
    from perfmodel.workloads.twins.stage.traces import stage_traces

    given = {name: value for name, value in words.items() if value is not None}
    arguments = stage_arguments(given)
    machine = machine_of(simulator, hardware, settings, json_traces)
    with activity("laying out the traces"):
        traces = stage_traces(arguments)
    if machine is None:
        write_traces_to(traces, output, json_traces)
    else:
        write_for(machine, traces, output, notes=(COUNTS,))
