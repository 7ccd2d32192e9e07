"""``perfmodel workload convert`` and ``synthetic``: Chakra traces from other things."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from perfmodel.base.fields import refuse_unused
from perfmodel.cli.group import Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.combinations import typed_options
from perfmodel.cli.shared.printing import activity, remark
from perfmodel.cli.workloads.workload.astra_sim import hardware_options, machine_of, write_for
from perfmodel.cli.workloads.workload.written import traces_output, write_traces_to

if TYPE_CHECKING:
    from perfmodel.workloads.trace import TraceSet

Function = TypeVar("Function", bound=Callable[..., Any])
INPUT, PATTERN, NODES = "Input", "Pattern", "Nodes"
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


def input_options(function: Function) -> Function:
    """Add what reading a workload as traces may need."""
    return options.stack(
        options.options_of("workloads.convert", "format", type=click.Choice(KINDS)),
        options.options_of(
            "workloads.convert", "trace_devices", "passes", "groups", "kineto", "npu_frequency"
        ),
    )(function)


@click.command("convert", cls=Command, short_help="Convert a workload to Chakra traces.")
@click.argument("workload", metavar="WORKLOAD", type=click.Path())
@input_options
@traces_output
@options.verbosity_options
def convert_command(workload: str, output: str, json_traces: bool, **given: Any) -> None:
    """Convert ASTRA-sim text, FlexFlow task graphs and PyTorch traces to Chakra traces.

    WORKLOAD is a file; or those of all ranks: the folder or prefix of NAME.0.json, NAME.1.json,
    …, a folder of PyTorch's profiler (WORKER.TIME.pt.trace.json; of several times the last), or a
    path with {rank} in the place of the rank and {time} in that of a time stamp.

    \b
    Examples:
      perfmodel workload convert DLRM_HybridParallel.txt --devices 8 -o traces/dlrm
      perfmodel workload convert alexnet.4.graph -o traces/alexnet
      perfmodel workload convert host_et.json --kineto kineto.json.gz -o traces/rank
      perfmodel workload convert 'kineto_{rank}.json.gz' -o traces/job
    """
    write_traces_to(load_traces(workload, given), output, json_traces)


@click.command("synthetic", cls=Command, short_help="Write small traces of one pattern.")
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
    """Write small Chakra traces: dependent compute, collectives in a chain or all at once
    (chained, concurrent), or a pipeline of sends and receives.

    \b
    Examples:
      perfmodel workload synthetic chained --devices 16 --count 10 --size 64MiB -o traces/chain
      perfmodel workload synthetic pipeline --devices 4 --count 16 --size 8MiB -o traces/pipe
      perfmodel workload synthetic chained --devices 16 --for astra-sim --hardware dgx-h100 \\
          -o traces/chain
    """
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
        make = {
            "chained": synthetic.chained_collectives,
            "concurrent": synthetic.concurrent_collectives,
        }[pattern]
        traces = make(
            devices, collective, size, count, synthetic.consecutive_groups(devices, group_size)
        )
    if machine is None:
        write_traces_to(traces, output)
    else:
        priced = num_ops is not None or tensor_size is not None
        write_for(machine, traces, output, roofline=priced or None)


def load_traces(workload: str, given: dict[str, Any]) -> TraceSet:
    """Read a workload as traces, with the values of `input_options`."""
    from perfmodel.workloads.convert.opening import check_input_options, open_traces
    from perfmodel.workloads.convert.recognise import workload_kind
    from perfmodel.workloads.convert.summary import trace_remarks

    kind = given["kind"] or workload_kind(workload)
    check_input_options(workload, kind, typed_options())
    with activity(f"reading {workload}") as tell:
        traces = open_traces(workload, **{**given, "kind": kind}, progress=tell)
    for line in trace_remarks(traces):
        remark(f"note: {line}")
    return traces
