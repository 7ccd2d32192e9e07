"""``perfmodel workload chakra``, ``astra-text`` and ``aicb --model``: projections as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from perfmodel.base.errors import StrategyError
from perfmodel.cli.core.project import load_problem
from perfmodel.cli.group import Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.models import model_option
from perfmodel.cli.shared.printing import activity
from perfmodel.cli.workloads.workload.aicb import check_output, write_text
from perfmodel.cli.workloads.workload.astra_sim import (
    Machine,
    for_option,
    stated_version,
    write_for,
)
from perfmodel.cli.workloads.workload.written import traces_output, write_traces_to

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.workloads.export.types import ProjectedWorkload

Function = TypeVar("Function", bound=Callable[..., Any])
FORM = "Form"


def projection_options(function: Function) -> Function:
    """Add the options of ``perfmodel project``."""
    return options.stack(
        model_option,
        options.hardware_option,
        options.devices_option,
        options.axis_options(single=True),
        options.schedule_file_option,
        options.set_option,
        options.framework_option,
        options.config_option,
    )(function)


stage_option = options.options_of("workloads.projected", "stage")
text_option = options.output_option(
    "FILE", "File to write; - for stdout.", required=True, stdout=True
)


@click.command("chakra", cls=Command, short_help="Write Chakra traces of a projection.")
@projection_options
@options.options_of("workloads.projected", "granularity", "named_groups", "serial_communication")
@for_option
@traces_output
@options.verbosity_options
def chakra_command(
    granularity: str,
    named_groups: bool,
    serial_communication: bool,
    simulator: str | None,
    json_traces: bool,
    output: str,
    **problem: Any,
) -> None:
    """Write one training step of a projection as Chakra execution traces.

    One file per rank: compute with FLOP, bytes and predicted time, collectives with their
    communicator groups, sends and receives between stages, and the dependencies that let
    the framework's overlap happen. ASTRA-sim and 'perfmodel simulate' run them.

    \b
    Examples:
      perfmodel workload chakra --model llama-3.1-8b --hardware dgx-h100 --devices 16 \\
          --tp 4 --pp 2 --global-batch 16 --seq-len 8192 -o traces/llama
      perfmodel simulate traces/llama --hardware dgx-h100
      perfmodel workload chakra --model llama-3.1-8b --hardware dgx-h100 --devices 16 \\
          --tp 4 --global-batch 16 --seq-len 8192 --for astra-sim -o traces/llama
    """
    from perfmodel.workloads.export.chakra import projected_traces

    version = stated_version(simulator, json_traces)
    if version is not None and version.numbered_groups and named_groups:
        raise StrategyError(f"--named-groups: {version} reads names of groups as numbers")
    workload, hardware = projected(problem)
    with activity("laying out the traces"):
        traces = projected_traces(
            workload,
            granularity=granularity,
            numbered_groups=not named_groups,
            serial_communication=serial_communication or version is not None,
        )
    if version is None:
        write_traces_to(traces, output, json_traces)
    else:
        precision = workload.strategy["precision"]
        write_for(Machine(version, hardware), traces, output, precision=precision)


@click.command("astra-text", cls=Command, short_help="Write ASTRA-sim 1.0 text of a projection.")
@projection_options
@stage_option
@text_option
@options.verbosity_options
def astra_text_command(stage: int | None, output: str, **problem: Any) -> None:
    """Write one stage of a projection as an ASTRA-sim 1.0 text workload.

    One row per layer: predicted times of forward, input gradient and weight gradient [ns],
    and what is communicated after each.

    \b
    Examples:
      perfmodel workload astra-text --model llama-3.1-8b --hardware dgx-h100 --devices 64 \\
          --tp 8 --global-batch 64 --seq-len 8192 -o llama.txt
    """
    from perfmodel.workloads.export.astra_text import astra_text_workload
    from perfmodel.workloads.formats.astra_text.text import format_astra_text

    check_output(output)
    text = format_astra_text(astra_text_workload(projected(problem)[0], stage))
    write_text(text, output)


@click.command("aicb", cls=Command, short_help="Write AICB text of a projection.")
@projection_options
@options.options_of("workloads.projected", "compat")
@stage_option
@text_option
@options.verbosity_options
def projected_aicb_command(compat: str, stage: int | None, output: str, **problem: Any) -> None:
    """Write a projection as an AICB/SimAI text workload: the corrected dialect.

    Every matrix of the model, true gradients and communication, predicted times [ns].
    SimAI and 'perfmodel simulate' run it. 'perfmodel workload aicb --help', without
    --model, is about AICB's own options and dialect.

    \b
    Examples:
      perfmodel workload aicb --model llama-3.1-8b --hardware dgx-h100 --devices 64 \\
          --tp 2 --global-batch 128 --seq-len 8192 -o workload.txt
    """
    from perfmodel.workloads.export.aicb import corrected_workload
    from perfmodel.workloads.formats.aicb.text import format_aicb_text

    check_output(output)
    text = format_aicb_text(corrected_workload(projected(problem)[0], stage))
    write_text(text, output)


def projected(problem: Mapping[str, Any]) -> tuple[ProjectedWorkload, Hardware]:
    """Return the operations of the projection that the options describe, and its hardware."""
    from perfmodel.workloads.export.workload import projected_workload

    model, grid, hardware, software = load_problem(problem)
    with activity("projecting"):
        return projected_workload(model, grid, hardware, framework=software), hardware
