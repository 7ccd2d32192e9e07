"""Open whatever can be run as execution traces: Chakra itself, and what is converted to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfmodel.errors import FormatError, StrategyError
from perfmodel.trace import TraceSet
from perfmodel.traces.recognise import (
    ASTRA_TEXT,
    CHAKRA,
    CHAKRA_JSON,
    FLEXFLOW,
    KINETO,
    MEANINGS,
    PYTORCH,
    workload_kind,
)

CONVERTIBLE = (ASTRA_TEXT, FLEXFLOW, PYTORCH, KINETO)
RUNNABLE = (CHAKRA, CHAKRA_JSON, *CONVERTIBLE)


def open_traces(
    path: str | Path,
    kind: str | None = None,
    *,
    devices: int | None = None,
    passes: int = 1,
    groups: str | Path | None = None,
    kineto: Sequence[str | Path] = (),
    npu_frequency: float | None = None,
) -> TraceSet:
    """Read a workload as execution traces, converting it where it is another kind.

    Parameters
    ----------
    path : str or Path
        File, folder or prefix.
    kind : str, optional
        One of `RUNNABLE`; by default what `workload_kind` finds.
    devices : int, optional
        Ranks of an ASTRA-sim text (needed there) or of a PyTorch trace.
    passes : int
        Training steps of an ASTRA-sim text.
    groups : str or Path, optional
        Communicator groups of Chakra traces.
    kineto : sequence of str or Path
        Kineto trace beside a PyTorch host trace.
    npu_frequency : float, optional
        For FlexFlow graphs: store cycles as the upstream converter does [MHz].

    Returns
    -------
    TraceSet

    Raises
    ------
    FormatError
        The file is not what it should be, or cannot be run as traces.
    StrategyError
        The number of devices is missing.
    """
    found = kind or workload_kind(path)
    if found in (CHAKRA, CHAKRA_JSON):
        from perfmodel.formats.chakra import read_traces

        return read_traces(path, groups)
    if found == ASTRA_TEXT:
        return _text(path, devices, passes)
    if found == FLEXFLOW:
        from perfmodel.formats.flexflow import read_flexflow
        from perfmodel.traces.flexflow import flexflow_traces

        return flexflow_traces(read_flexflow(path), npu_frequency)
    if found in (PYTORCH, KINETO):
        return _pytorch(path, found, devices, kineto)
    raise FormatError(
        f"'{path}' is {MEANINGS.get(found, found)}; what runs as execution traces: "
        + ", ".join(RUNNABLE)
    )


def _text(path: str | Path, devices: int | None, passes: int) -> TraceSet:
    """Convert an ASTRA-sim text workload."""
    from perfmodel.formats.astra_text import read_astra_text
    from perfmodel.traces.text_conversion import convert_text

    workload = read_astra_text(path)
    if devices is None:
        raise StrategyError(f"'{path}' does not say on how many devices it runs; --devices N does")
    # The official converter quotes the whole file, line ends made plain, in each rank's file.
    return convert_text(workload, devices, passes, text=Path(path).read_text("utf-8-sig"))


def _pytorch(
    path: str | Path, kind: str, devices: int | None, kineto: Sequence[str | Path]
) -> TraceSet:
    """Convert the trace of one PyTorch process."""
    from perfmodel.formats.kineto import read_kineto
    from perfmodel.formats.pytorch_trace import read_host_trace
    from perfmodel.traces.pytorch import pytorch_traces

    if kind == KINETO:
        return pytorch_traces([(None, read_kineto(path))], devices)
    if len(kineto) > 1:
        raise FormatError(f"{len(kineto)} Kineto traces beside one host trace; there should be one")
    device = read_kineto(kineto[0]) if kineto else None
    return pytorch_traces([(read_host_trace(path), device)], devices)
