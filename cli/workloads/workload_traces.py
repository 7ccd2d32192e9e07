"""``perfmodel workload convert``, ``synthetic``, ``stage`` and ``show``: traces of other things.

Where traces are written, and what is said of them; with ``--for astra-sim`` also all that the real
simulator needs to run them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from perfmodel.base.errors import StrategyError
from perfmodel.base.fields import refuse_unused
from perfmodel.base.units import counted, format_si, format_time
from perfmodel.cli.shared import options
from perfmodel.cli.shared.inputs import check_acts, load_rows
from perfmodel.cli.shared.launch_file import typed_options
from perfmodel.cli.shared.options import fields_of, page
from perfmodel.cli.shared.printing import activity, heading, print_json, remark, table

if TYPE_CHECKING:
    from pathlib import Path

    from perfmodel.hwprofiles import Hardware
    from perfmodel.workloads.trace import TraceSet
    from perfmodel.workloads.twins.astra.versions import AstraVersion


traces_output = options.stack(
    options.output_option(
        "PREFIX", "Write PREFIX.0.et, PREFIX.1.et, … and PREFIX.groups.json.", required=True
    ),
    options.options_of("workloads.written", "json_traces"),
)
"""Where traces go, and in which form."""


def write_traces_to(traces: TraceSet, prefix: str, as_json: bool = False) -> None:
    """Write traces, and say what was written."""
    from perfmodel.workloads.formats.chakra.files import make_folder_of, write_traces

    suffix = ".json" if as_json else ".et"
    make_folder_of(prefix, traces, suffix)
    with activity(f"writing {prefix}") as tell:
        paths = write_traces(traces, prefix, suffix, tell)
    tell_written(traces, paths)


def tell_written(traces: TraceSet, paths: Sequence[Path]) -> None:
    """Say which traces, and which groups behind them, were written."""
    last = traces.devices - 1
    files = f"{paths[0]}" if last == 0 else f"{paths[0]} … {paths[last]}"
    groups = ""
    if traces.groups:
        groups = f", {counted(len(traces.groups), 'group')}: {paths[traces.devices]}"
    written = f"{counted(traces.nodes, 'node')} of {counted(traces.devices, 'rank')}"
    remark(f"wrote {written}: {files}{groups}")


for_option = options.options_of("workloads.astra_sim", "for")


class Machine(NamedTuple):
    """Which version of the simulator, and the hardware that it is to simulate, as it was named."""

    version: AstraVersion
    hardware: Hardware
    named: str = ""
    settings: Mapping[str, Any] = {}


hardware_options = options.stack(
    for_option,
    options.one_hardware_option(
        section="For ASTRA-sim", text=f"{options.HARDWARE_HELP}: its network and device, for --for."
    ),
    options.set_option,
)
"""``--for``, and which hardware it is about, of a command that needs none otherwise."""


def stated_version(simulator: str | None, as_json: bool = False) -> AstraVersion | None:
    """Return the version that ``--for`` names; None without."""
    from perfmodel.workloads.twins.astra.versions import astra_version

    if simulator is None:
        return None
    version = astra_version(simulator)
    if as_json:
        raise StrategyError("--json-traces: ASTRA-sim reads .et files only")
    return version


def machine_of(
    simulator: str | None,
    hardware: str | None,
    settings: Mapping[str, Any],
    as_json: bool = False,
) -> Machine | None:
    """Return what `hardware_options` name; None without ``--for``."""
    version = stated_version(simulator, as_json)
    if version is None:
        for name, given in (("--hardware", hardware), ("--set", settings)):
            if given:
                raise StrategyError(f"{name} is for traces with --for astra-sim")
        return None
    if hardware is None:
        raise StrategyError(
            f"--for {simulator} needs --hardware NAME, whose network the files describe "
            "('perfmodel hardware list')"
        )
    (profile,), _ = load_rows([hardware], settings, {})
    return Machine(version, profile, hardware, settings)


def write_for(
    machine: Machine,
    traces: TraceSet,
    prefix: str,
    *,
    precision: str | None = None,
    roofline: bool | None = None,
    notes: tuple[str, ...] = (),
) -> None:
    """Write traces and what runs them; say what was written, and print both command lines."""
    from perfmodel.workloads.export.astra_sim import (
        AstraExport,
        astra_export,
        check_prefix,
        command_lines,
        write_astra_export,
    )
    from perfmodel.workloads.formats.chakra.files import make_folder_of

    def exported(hardware: Hardware) -> AstraExport:
        return astra_export(
            traces, hardware, machine.version, precision=precision, roofline=roofline
        )

    def results(rows: list[Hardware], most: int) -> list[object]:
        return [(it.network, it.system) for it in map(exported, rows)]

    check_acts([machine.named], machine.settings, {}, results)
    export = exported(machine.hardware)
    check_prefix(prefix, export.traces)
    make_folder_of(prefix, export.traces)
    with activity(f"writing {prefix}") as tell:
        paths = write_astra_export(export, prefix, tell)
    tell_written(export.traces, paths)
    files = ", ".join(map(str, paths[-3:]))
    remark(f"wrote {machine.hardware.name} for {machine.version}: {files}")
    for note in (*export.notes, *notes):
        remark(note)
    for line in command_lines(export, prefix):
        click.echo(line)


KINDS = ("astra-text", "flexflow", "pytorch", "kineto", "chakra", "chakra-json")
PATTERNS = ("compute", "chained", "concurrent", "pipeline")
# What options are for, and which of them have an effect on which pattern.
PATTERN_PURPOSES = {
    "chained and concurrent collectives": ("collective", "group_size"),
    "collectives and pipelines": ("size",),
    "pipelines": ("schedule",),
    "compute and pipelines": ("duration", "num_ops", "tensor_size"),
}
PATTERN_OPTIONS = {
    "compute": ("duration", "num_ops", "tensor_size"),
    "chained": ("collective", "group_size", "size"),
    "concurrent": ("collective", "group_size", "size"),
    "pipeline": ("size", "schedule", "duration", "num_ops", "tensor_size"),
}


input_options = options.stack(
    options.options_of("workloads.convert", "format", type=click.Choice(KINDS)),
    options.options_of(
        "workloads.convert", "trace_devices", "passes", "groups", "kineto", "npu_frequency"
    ),
)
"""What reading a workload as traces may need."""


@click.command(
    "convert", **page("workloads", "workload convert", "Convert a workload to Chakra traces.")
)
@click.argument("workload", metavar="WORKLOAD", type=click.Path())
@input_options
@traces_output
@options.verbosity_options
def convert_command(workload: str, output: str, json_traces: bool, **given: Any) -> None:
    """Convert ASTRA-sim text, FlexFlow task graphs and PyTorch traces to Chakra traces."""
    write_traces_to(load_traces(workload, given), output, json_traces)


@click.command(
    "synthetic", **page("workloads", "workload synthetic", "Write small traces of one pattern.")
)
@click.argument("pattern", metavar="PATTERN", type=click.Choice(PATTERNS))
@options.options_of(
    "workloads.convert",
    "devices",
    "count",
    "collective",
    "size",
    "group_size",
    "schedule",
    "duration",
    "num_ops",
    "tensor_size",
)
@hardware_options
@options.output_option("PREFIX", "Write PREFIX.0.et, PREFIX.1.et, …", required=True)
@options.verbosity_options
def synthetic_command(
    pattern: str,
    devices: int,
    count: int,
    collective: str,
    size: int,
    group_size: int | None,
    schedule: str,
    duration: float,
    num_ops: int | None,
    tensor_size: int | None,
    simulator: str | None,
    hardware: str | None,
    settings: dict[str, Any],
    output: str,
) -> None:
    """Write small Chakra traces of one pattern."""
    from perfmodel.workloads.convert import synthetic
    from perfmodel.workloads.trace import ABSENT

    used = PATTERN_OPTIONS[pattern]
    refuse_unused(typed_options(), used, PATTERN_PURPOSES, f"the pattern is {pattern}")
    machine = machine_of(simulator, hardware, settings)
    operations = ABSENT if num_ops is None else num_ops
    traffic = ABSENT if tensor_size is None else tensor_size
    if pattern == "compute":
        traces = synthetic.dependent_compute(devices, count, operations, traffic, duration)
    elif pattern == "pipeline":
        forward = synthetic.Work(duration, operations, traffic)
        traces = synthetic.pipeline(devices, count, forward, forward.twice(), size, schedule)
    else:
        groups = synthetic.consecutive_groups(devices, group_size)
        chained = pattern == "chained"
        traces = synthetic.repeated_collectives(
            devices, collective, size, count, groups, chained=chained
        )
    if machine is None:
        write_traces_to(traces, output)
    else:
        priced = num_ops is not None or tensor_size is not None
        write_for(machine, traces, output, roofline=priced or None)


def load_traces(workload: str, given: dict[str, Any]) -> TraceSet:
    """Read a workload as traces, with the values of `input_options`."""
    from perfmodel.workloads.convert.opening import check_input_options, open_traces, workload_kind
    from perfmodel.workloads.convert.summary import trace_remarks

    kind = given["kind"] or workload_kind(workload)
    check_input_options(workload, kind, typed_options())
    with activity(f"reading {workload}") as tell:
        traces = open_traces(workload, **{**given, "kind": kind}, progress=tell)
    for line in trace_remarks(traces):
        remark(f"note: {line}")
    return traces


SCHEMA_VERSION = "1"
# What `show` tells elsewhere than in a line of its own.
NOT_LINES = (
    "schema_version",
    "workload",
    "format",
    "collectives",
    "first_rank",
    "times",
    "remarks",
)


@click.command("show", **page("workloads", "workload show", "Describe a workload file."))
@click.argument("workload", metavar="WORKLOAD", type=click.Path())
@input_options
@options.json_option
@options.verbosity_options
def show_command(workload: str, as_json: bool, **given: Any) -> None:
    """Say what a workload holds: nodes or rows, operations, bytes by collective."""
    from perfmodel.workloads.convert.opening import MEANINGS, check_input_options, workload_kind
    from perfmodel.workloads.convert.summary import workload_summary

    kind = given["kind"] or workload_kind(workload)
    check_input_options(workload, kind, typed_options())
    with activity(f"reading {workload}") as tell:
        found = workload_summary(workload, **{**given, "kind": kind}, progress=tell)
    named = {"schema_version": SCHEMA_VERSION, "workload": workload, "format": kind}
    document: dict[str, Any] = named | found
    if as_json:
        print_json(document)
        return
    click.echo(heading(f"{workload}: {MEANINGS.get(kind, kind)}"))
    for key, value in document.items():
        if key in NOT_LINES:
            continue
        if isinstance(value, Mapping):
            value = ", ".join(f"{name} {_cell(name, item)}" for name, item in value.items())
        click.echo(f"{key.replace('_', ' '):<22}{_cell(key, value)}")
    print_collectives("collective", dict(sorted((document.get("collectives") or {}).items())))
    for line in document.get("remarks", ()):
        click.echo(f"note: {line}")
    if document.get("times"):
        click.echo()
        rows = [[name, format_time(time)] for name, time in document["times"].items()]
        click.echo(table(["section", "time"], rows))


def print_collectives(title: str, collectives: Mapping[str, Mapping[str, float]]) -> None:
    """Print a table of collectives, where there are any, an empty line before it."""
    rows = [
        [name, f"{row['count']:,.0f}", format_si(row["bytes"], "B", even=True)]
        for name, row in collectives.items()
    ]
    if rows:
        click.echo("\n" + table([title, "count", "bytes"], rows))


def _cell(name: str, value: Any) -> str:
    """Return a figure as text, in the unit that its name says."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if name == "bytes" or name.endswith("_bytes") or name == "tensor_size":
        return format_si(value, "B", even=True)
    if isinstance(value, float):
        return format_time(value)
    if name == "num_ops":
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


COUNTS = (
    "STAGE counts a multiply-add as one operation and an element as one byte: halve peak-perf, "
    "local-mem-bw and bandwidth for numbers of 16 bits"
)


@click.command(
    "stage", **page("workloads", "workload stage", "Write what the STAGE generator writes.")
)
@options.options_of("workloads.stage", *fields_of("workloads.stage"))
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
    """Write the Chakra traces of a transformer's training step as STAGE generates them."""
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
