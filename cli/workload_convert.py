"""``perfmodel workload convert`` and ``synthetic``: Chakra traces from other things."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from perfmodel.cli import options
from perfmodel.cli.group import Command
from perfmodel.cli.printing import remark
from perfmodel.cli.topology import SizeType

if TYPE_CHECKING:
    from perfmodel.trace import TraceSet

Function = TypeVar("Function", bound=Callable[..., Any])
INPUT, PATTERN, NODES = "Input", "Pattern", "Nodes"
KINDS = ("astra-text", "flexflow", "pytorch", "kineto", "chakra", "chakra-json")
PATTERNS = ("compute", "chained", "concurrent", "pipeline")


def input_options(function: Function) -> Function:
    """Add what reading a workload as traces may need."""
    return options.stack(
        options.option(
            "--format",
            "kind",
            section=INPUT,
            type=click.Choice(KINDS),
            help="What the file is.  [default: found by its content]",
        ),
        options.option(
            "--devices",
            section=INPUT,
            type=click.IntRange(min=1),
            metavar="N",
            help="Ranks of an ASTRA-sim text or of a single PyTorch trace.",
        ),
        options.option(
            "--passes",
            section=INPUT,
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            metavar="N",
            help="Training steps of an ASTRA-sim text.",
        ),
        options.option(
            "--groups",
            section=INPUT,
            metavar="FILE.json",
            type=click.Path(),
            help="Communicator groups of Chakra traces.  [default: PREFIX.groups.json]",
        ),
        options.option(
            "--kineto",
            section=INPUT,
            multiple=True,
            metavar="FILE.json",
            type=click.Path(),
            help="Profiler's trace of the device beside a PyTorch host trace.",
        ),
        options.option(
            "--npu-frequency",
            section=INPUT,
            type=click.FloatRange(min=0.0, min_open=True),
            metavar="MHZ",
            help="FlexFlow: store cycles in place of microseconds, as the upstream converter.",
        ),
    )(function)


@click.command("convert", cls=Command, short_help="Convert a workload to Chakra traces.")
@click.argument("workload", metavar="WORKLOAD", type=click.Path())
@input_options
@options.option(
    "-o",
    "--output",
    section=options.OUTPUT,
    required=True,
    metavar="PREFIX",
    type=click.Path(),
    help="Write PREFIX.0.et, PREFIX.1.et, … and PREFIX.groups.json.",
)
@options.option(
    "--json-traces", section=options.OUTPUT, is_flag=True, help="Write JSON instead of protobuf."
)
@options.verbosity_options
def convert_command(workload: str, output: str, json_traces: bool, **given: Any) -> None:
    """Convert ASTRA-sim text, FlexFlow task graphs and PyTorch traces to Chakra traces.

    \b
    Examples:
      perfmodel workload convert DLRM_HybridParallel.txt --devices 8 -o traces/dlrm
      perfmodel workload convert alexnet.4.graph -o traces/alexnet
      perfmodel workload convert host_et.json --kineto kineto.json -o traces/rank
    """
    write_traces_to(load_traces(workload, given), output, json_traces)


@click.command("synthetic", cls=Command, short_help="Write small traces of one pattern.")
@click.argument("pattern", metavar="PATTERN", type=click.Choice(PATTERNS))
@options.option(
    "--devices",
    section=PATTERN,
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="Ranks; of a pipeline, its stages.",
)
@options.option(
    "--count",
    section=PATTERN,
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    metavar="N",
    help="Nodes of a rank; of a pipeline, its micro-batches.",
)
@options.option(
    "--collective",
    section=PATTERN,
    type=click.Choice(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]),
    default="all_reduce",
    show_default=True,
    help="Of chained and concurrent.",
)
@options.option(
    "--size",
    section=PATTERN,
    type=SizeType(),
    default="1MiB",
    show_default=True,
    help="Bytes of a collective, or of a message between stages.",
)
@options.option(
    "--schedule",
    section=PATTERN,
    type=click.Choice(["1f1b", "gpipe"]),
    default="1f1b",
    show_default=True,
    help="Of a pipeline.",
)
@options.option(
    "--duration",
    section=NODES,
    type=click.FloatRange(min=0.0),
    default=1e-3,
    show_default=True,
    metavar="S",
    help="Of a compute node, replayed [s]; a backward pass takes twice as long.",
)
@options.option(
    "--num-ops",
    section=NODES,
    type=click.IntRange(min=1),
    metavar="N",
    help="Operations of a compute node [FLOP], for a roofline.",
)
@options.option(
    "--tensor-size",
    section=NODES,
    type=SizeType(),
    help="Memory traffic of a compute node [B], for a roofline.",
)
@options.option(
    "-o",
    "--output",
    section=options.OUTPUT,
    required=True,
    metavar="PREFIX",
    type=click.Path(),
    help="Write PREFIX.0.et, PREFIX.1.et, …",
)
@options.verbosity_options
def synthetic_command(
    pattern: str,
    devices: int,
    count: int,
    collective: str,
    size: int,
    schedule: str,
    duration: float,
    num_ops: int | None,
    tensor_size: int | None,
    output: str,
) -> None:
    """Write small Chakra traces: dependent compute, collectives in a chain or all at once
    (chained, concurrent), or a pipeline of sends and receives.

    \b
    Examples:
      perfmodel workload synthetic chained --devices 16 --count 10 --size 64MiB -o traces/chain
      perfmodel workload synthetic pipeline --devices 4 --count 16 --size 8MiB -o traces/pipe
    """
    from perfmodel.trace import ABSENT
    from perfmodel.traces import synthetic

    operations = ABSENT if num_ops is None else num_ops
    traffic = ABSENT if tensor_size is None else tensor_size
    if pattern == "compute":
        traces = synthetic.dependent_compute(devices, count, operations, traffic, duration)
    elif pattern == "pipeline":
        forward = synthetic.Work(duration, operations, traffic)
        backward = synthetic.Work(
            2 * duration, *(max(2 * number, ABSENT) for number in (operations, traffic))
        )
        traces = synthetic.pipeline(devices, count, forward, backward, size, schedule)
    else:
        make = {
            "chained": synthetic.chained_collectives,
            "concurrent": synthetic.concurrent_collectives,
        }[pattern]
        traces = make(devices, collective, size, count)
    write_traces_to(traces, output)


def load_traces(workload: str, given: dict[str, Any]) -> TraceSet:
    """Read a workload as traces, with the values of `input_options`."""
    from perfmodel.traces.opening import open_traces

    return open_traces(
        workload,
        given["kind"],
        devices=given["devices"],
        passes=given["passes"],
        groups=given["groups"],
        kineto=given["kineto"],
        npu_frequency=given["npu_frequency"],
    )


def write_traces_to(traces: TraceSet, prefix: str, as_json: bool = False) -> None:
    """Write traces, and say what was written."""
    from perfmodel.formats.chakra import write_traces

    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    paths = write_traces(traces, prefix, ".json" if as_json else ".et")
    last = traces.devices - 1
    files = f"{paths[0]}" if last == 0 else f"{paths[0]} … {paths[last]}"
    groups = f", {len(traces.groups):,} groups: {paths[-1]}" if traces.groups else ""
    remark(f"wrote {traces.nodes:,} nodes of {traces.devices:,} ranks: {files}{groups}")
