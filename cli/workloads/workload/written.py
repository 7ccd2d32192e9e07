"""Where traces are written, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from perfmodel.base.units import counted
from perfmodel.cli.shared import options
from perfmodel.cli.shared.printing import activity, remark

if TYPE_CHECKING:
    from pathlib import Path

    from perfmodel.workloads.trace import TraceSet

Function = TypeVar("Function", bound=Callable[..., Any])


def traces_output(function: Function) -> Function:
    """Add where traces go, and in which form."""
    return options.stack(
        options.output_option(
            "PREFIX", "Write PREFIX.0.et, PREFIX.1.et, … and PREFIX.groups.json.", required=True
        ),
        options.options_of("workloads.written", "json_traces"),
    )(function)


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
