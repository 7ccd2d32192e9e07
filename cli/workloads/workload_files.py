"""``perfmodel workload chakra``, ``astra-text``, ``aicb`` and ``aiob``: files with predicted times.

``aicb`` takes AICB's options in its own spellings, or with ``--model`` a projection of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import DataError, StrategyError
from perfmodel.cli.core.project import load_problem
from perfmodel.cli.shared import options
from perfmodel.cli.shared.models import model_option
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import activity, remark
from perfmodel.cli.workloads.workload_traces import (
    Machine,
    for_option,
    stated_version,
    traces_output,
    write_for,
    write_traces_to,
)

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.training.step.types import ProjectedWorkload
    from perfmodel.workloads.formats.aiob import AiobFile
    from perfmodel.workloads.twins.aicb.arguments import AicbArguments

ANY_OPTION = {"ignore_unknown_options": True, "allow_interspersed_args": True}


profile_option = options.one_hardware_option(
    section="Computation times",
    text="Predict the times of this profile's device ('perfmodel hardware list'), in place "
    "of --comp_filepath.",
)
"""The device whose times are predicted."""


host_option = options.options_of("workloads.aicb", "call_latency")
"""The host's time per call, which AIOB's measurements include."""


@click.command(
    "aicb",
    context_settings=ANY_OPTION,
    no_args_is_help=True,
    **page("workloads", "workload aicb", "Write what AICB writes."),
)
@click.argument("aicb_options", metavar="[AICB OPTION]...", nargs=-1, type=click.UNPROCESSED)
@options.options_of("workloads.aicb", "compat")
@profile_option
@host_option
@options.options_of("workloads.aicb", "num_query_groups")
@options.output_option(
    "FILE", "File to write; - for stdout.  [default: AICB's name, here]", stdout=True
)
@options.verbosity_options
def aicb_command(
    aicb_options: tuple[str, ...],
    compat: str,
    hardware: str | None,
    call_latency: float | None,
    num_query_groups: int | None,
    output: str | None,
) -> None:
    """Write the workload file that AICB writes for its own options, without a GPU."""
    from perfmodel.workloads.twins.aicb.arguments import parse_arguments

    arguments = parse_arguments(aicb_options)
    check_output(output)
    if compat == "corrected":
        text, name = _corrected(arguments, hardware, num_query_groups)
        if call_latency is not None:
            raise StrategyError("--call-latency is for AICB's own dialect and the aiob file")
    else:
        if num_query_groups is not None:
            raise StrategyError("--num-query-groups is for --compat corrected; AICB has none")
        if call_latency is not None and hardware is None:
            raise StrategyError("--call-latency goes with --hardware, whose times it is part of")
        text, name = _as_aicb(arguments, hardware, call_latency)
    write_text(text, name if output is None else output)
    if arguments.generator == "training" and not arguments.micro_batches:
        remark(
            f"note: ga is 0, so no layer is written: --global_batch={arguments.global_batch} is "
            f"less than --micro_batch={arguments.micro_batch} on each of "
            f"{arguments.data_parallel:,} replicas"
        )


@click.command(
    "aiob",
    context_settings=ANY_OPTION,
    **page("workloads", "workload aiob", "Predict AICB's computation file."),
)
@click.argument("aicb_options", metavar="[AICB OPTION]...", nargs=-1, type=click.UNPROCESSED)
@profile_option
@host_option
@options.options_of("workloads.aicb", "calibration")
@options.output_option("FILE", "File to write.  [default: stdout]", stdout=True)
@options.verbosity_options
def aiob_command(
    aicb_options: tuple[str, ...],
    hardware: str | None,
    call_latency: float | None,
    calibration: str | None,
    output: str | None,
) -> None:
    """Predict the computation file that AICB's AIOB would measure on a GPU."""
    from perfmodel.workloads.formats.aiob import format_aiob
    from perfmodel.workloads.twins.aicb.arguments import parse_arguments

    arguments = parse_arguments(aicb_options)
    if hardware is None:
        raise StrategyError("--hardware NAME is needed: the profile of the device")
    check_output(output)
    device = load_device(hardware)
    if calibration is not None:
        _write_calibration(arguments, hardware, Path(calibration))
        return
    write_text(
        format_aiob(_predicted(arguments, device, call_latency)), "-" if output is None else output
    )


def _as_aicb(
    arguments: AicbArguments, hardware: str | None, call_latency: float | None
) -> tuple[str, str]:
    """Return text and name of AICB's own file."""
    from perfmodel.workloads.formats.aiob import read_aiob
    from perfmodel.workloads.twins.aicb.arguments import file_name, generate

    computation = None
    if hardware is not None:
        if not arguments.aiob_enable:
            raise StrategyError("--hardware predicts computation times; add --aiob_enable")
        if arguments.comp_filepath is not None:
            raise StrategyError("--hardware and --comp_filepath both give times; drop one")
        computation = _predicted(arguments, load_device(hardware), call_latency)
    elif arguments.aiob_enable and arguments.comp_filepath is not None:
        computation = read_aiob(arguments.comp_filepath)
    elif arguments.aiob_enable:
        raise StrategyError(
            "--aiob_enable needs computation times: --comp_filepath=FILE, or --hardware NAME "
            "to predict them"
        )
    with activity("writing the workload"):
        return generate(arguments, computation), file_name(arguments)


def _corrected(
    arguments: AicbArguments, hardware: str | None, query_groups: int | None
) -> tuple[str, str]:
    """Return text and name of the corrected dialect's file."""
    from perfmodel.cli.workloads.aicb_translation import model_of, strategy_of
    from perfmodel.training.step.workload import projected_workload
    from perfmodel.workloads.export.text import corrected_workload
    from perfmodel.workloads.formats.aicb_text import format_aicb_text
    from perfmodel.workloads.twins.aicb.arguments import file_name

    if hardware is None:
        raise StrategyError("--compat corrected needs --hardware NAME, whose times it predicts")
    model = model_of(arguments, query_groups)
    grid = strategy_of(arguments, model)
    device = load_device(hardware)
    with activity("projecting"):
        workload = projected_workload(model, grid, device)
        return format_aicb_text(corrected_workload(workload)), file_name(arguments)


def _predicted(arguments: AicbArguments, device: Hardware, call_latency: float | None) -> AiobFile:
    """Return predicted computation times."""
    from perfmodel.workloads.twins.aicb.computation import CALL_LATENCY, predicted_computation

    latency = CALL_LATENCY if call_latency is None else call_latency
    with activity("predicting computation times"):
        return predicted_computation(arguments, device, call_latency=latency)


def _write_calibration(arguments: AicbArguments, device: str, folder: Path) -> None:
    """Write the tables that a measured file becomes."""
    from perfmodel.workloads.formats.aiob import read_aiob
    from perfmodel.workloads.twins.aicb.measured import write_calibration_tables

    if arguments.comp_filepath is None:
        raise StrategyError("--calibration needs the measured file: --comp_filepath=FILE")
    measured = read_aiob(arguments.comp_filepath)
    make_folder(folder)
    for path in write_calibration_tables(measured, arguments, device, folder).values():
        remark(f"wrote {path}")


def load_device(name: str) -> Hardware:
    """Load one profile."""
    from perfmodel.cli.shared.inputs import load_rows

    (device,), _ = load_rows([name], {}, {})
    return device


def make_folder(folder: Path) -> None:
    """Make a folder, and those around it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the folder '{folder}': {error.strerror or error}") from None


def check_output(output: str | None) -> None:
    """Make sure, before long work, that the named file can be written."""
    from perfmodel.base.files import check_writable

    if output is not None and output != "-":
        check_writable(output)


def write_text(text: str, output: str) -> None:
    """Write a file, or to stdout."""
    from perfmodel.base.files import atomic_path

    if output == "-":
        click.echo(text, nl=False)
        return
    path = Path(output)
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode())
    remark(f"wrote {path}")


def is_projection(words: Sequence[str]) -> bool:
    """Tell whether a command line describes a model of ours, not one in AICB's words."""
    return any(word.partition("=")[0] in ("--model", "--config") for word in words)


projection_options = options.stack(
    model_option,
    options.hardware_option,
    options.devices_option,
    options.axis_options(single=True),
    options.schedule_file_option,
    options.set_option,
    options.framework_option,
    options.config_option,
)
"""The options of ``perfmodel project``."""


stage_option = options.options_of("workloads.projected", "stage")
text_option = options.output_option(
    "FILE", "File to write; - for stdout.", required=True, stdout=True
)


@click.command(
    "chakra", **page("workloads", "workload chakra", "Write Chakra traces of a projection.")
)
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
    """Write one training step of a projection as Chakra execution traces."""
    from perfmodel.workloads.export.chakra import check_traces, projected_traces

    version = stated_version(simulator, json_traces)
    if version is not None and version.numbered_groups and named_groups:
        raise StrategyError(f"--named-groups: {version} reads names of groups as numbers")
    workload, hardware = projected(problem)
    check_traces(workload, granularity)
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


@click.command(
    "astra-text",
    **page("workloads", "workload astra-text", "Write ASTRA-sim 1.0 text of a projection."),
)
@projection_options
@stage_option
@text_option
@options.verbosity_options
def astra_text_command(stage: int | None, output: str, **problem: Any) -> None:
    """Write one stage of a projection as an ASTRA-sim 1.0 text workload."""
    from perfmodel.workloads.export.text import astra_text_workload
    from perfmodel.workloads.formats.astra_text import format_astra_text

    check_output(output)
    text = format_astra_text(astra_text_workload(projected(problem)[0], stage))
    write_text(text, output)


@click.command(
    "aicb", **page("workloads", "workload aicb --model", "Write AICB text of a projection.")
)
@projection_options
@options.options_of("workloads.projected", "compat")
@stage_option
@text_option
@options.verbosity_options
def projected_aicb_command(compat: str, stage: int | None, output: str, **problem: Any) -> None:
    """Write a projection as an AICB/SimAI text workload: the corrected dialect."""
    from perfmodel.workloads.export.text import corrected_workload
    from perfmodel.workloads.formats.aicb_text import format_aicb_text

    check_output(output)
    text = format_aicb_text(corrected_workload(projected(problem)[0], stage))
    write_text(text, output)


def projected(problem: Mapping[str, Any]) -> tuple[ProjectedWorkload, Hardware]:
    """Return the operations of the projection that the options describe, and its hardware."""
    from perfmodel.training.step.workload import projected_workload

    model, grid, hardware, software = load_problem(problem)
    with activity("projecting"):
        return projected_workload(model, grid, hardware, framework=software), hardware
