"""Open whatever can be run as execution traces: Chakra itself, and what is converted to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.base.fields import refuse_unused
from perfmodel.workloads.convert.profiler_files import (
    RANK_PLACE,
    TIME_PLACE,
    folder_files,
    stamped_files,
)
from perfmodel.workloads.convert.recognise import (
    ASTRA_TEXT,
    CHAKRA,
    CHAKRA_JSON,
    FLEXFLOW,
    KINETO,
    MEANINGS,
    PYTORCH,
    workload_kind,
)
from perfmodel.workloads.trace import TraceSet

CONVERTIBLE = (ASTRA_TEXT, FLEXFLOW, PYTORCH, KINETO)
RUNNABLE = (CHAKRA, CHAKRA_JSON, *CONVERTIBLE)
INPUT_PURPOSES: Mapping[str, tuple[str, ...]] = {
    "ASTRA-sim texts": ("passes",),
    "Chakra traces": ("groups",),
    "PyTorch host traces": ("kineto",),
    "FlexFlow task graphs": ("npu_frequency",),
    "ASTRA-sim texts and traces of one rank": ("devices",),
}
"""What an option of `open_traces` is for, in words."""

INPUT_OPTIONS: Mapping[str, tuple[str, ...]] = {
    ASTRA_TEXT: ("devices", "passes"),
    CHAKRA: ("devices", "groups"),
    CHAKRA_JSON: ("devices", "groups"),
    PYTORCH: ("devices", "kineto"),
    KINETO: ("devices",),
    FLEXFLOW: ("npu_frequency",),
}
"""Kind of workload -> options of `open_traces` that have an effect."""


def check_input_options(path: str | Path, kind: str, stated: Collection[str]) -> None:
    """Refuse options of `open_traces` that mean nothing for a kind of workload.

    Raises
    ------
    StrategyError
        One of the options `stated` has no effect.
    """
    run = f"'{path}' is of another kind: {kind}"
    refuse_unused(stated, INPUT_OPTIONS.get(kind, ()), INPUT_PURPOSES, run)


def open_traces(
    path: str | Path,
    kind: str | None = None,
    *,
    devices: int | None = None,
    passes: int = 1,
    groups: str | Path | None = None,
    kineto: Sequence[str | Path] = (),
    npu_frequency: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TraceSet:
    """Read a workload as execution traces, converting it where it is another kind.

    Parameters
    ----------
    path : str or Path
        File, folder or prefix; ``{rank}`` in it stands for the rank, from 0 on, and ``{time}``
        for a time stamp.
    kind : str, optional
        One of `RUNNABLE`; by default what `workload_kind` finds.
    devices : int, optional
        Ranks of an ASTRA-sim text (needed there). A single PyTorch or Chakra trace stands for
        so many ranks, if all its communication is of all ranks; of several it is their number.
    passes : int
        Training steps of an ASTRA-sim text.
    groups : str or Path, optional
        Communicator groups of Chakra traces.
    kineto : sequence of str or Path
        Kineto traces beside PyTorch's host traces, by rank: files, or as `path`.
    npu_frequency : float, optional
        For FlexFlow graphs: store cycles as the upstream converter does [MHz].
    progress : callable, optional
        Called after each of several Chakra files with the number of files done and of all.

    Returns
    -------
    TraceSet

    Raises
    ------
    FormatError
        The file is not what it should be, cannot be run as traces, or cannot stand for
        `devices` ranks.
    StrategyError
        The number of devices is missing, or something is given that this kind has no use for.
    """
    found = kind or workload_kind(path)
    if found in RUNNABLE:
        values = {"groups": groups, "kineto": kineto, "npu_frequency": npu_frequency}
        stated = {name for name, value in values.items() if value}
        check_input_options(path, found, stated | ({"passes"} if passes != 1 else set()))
    if found in (CHAKRA, CHAKRA_JSON):
        from perfmodel.workloads.formats.chakra.files import read_traces

        source = rank_files(path) if RANK_PLACE in str(path) else path
        return read_traces(source, groups, devices, progress)
    if found == ASTRA_TEXT:
        return _text(path, devices, passes)
    if found == FLEXFLOW:
        from perfmodel.workloads.convert.flexflow import flexflow_traces
        from perfmodel.workloads.formats.flexflow import read_flexflow

        traces = flexflow_traces(read_flexflow(path), npu_frequency)
        if devices not in (None, traces.devices):
            raise FormatError(f"'{path}' has {traces.devices} devices, not {devices}")
        return traces
    if found in (PYTORCH, KINETO):
        return _pytorch(path, found, devices, kineto)
    raise FormatError(
        f"'{path}' is {MEANINGS.get(found, found)}; what runs as execution traces: "
        + ", ".join(RUNNABLE)
    )


def _text(path: str | Path, devices: int | None, passes: int) -> TraceSet:
    """Convert an ASTRA-sim text workload."""
    from perfmodel.workloads.convert.astra_text import convert_text
    from perfmodel.workloads.formats.astra_text.text import read_astra_text

    workload = read_astra_text(path)
    if devices is None:
        raise StrategyError(f"'{path}' does not say on how many devices it runs; --devices N does")
    # The official converter quotes the whole file, line ends made plain, in each rank's file.
    return convert_text(workload, devices, passes, text=Path(path).read_text("utf-8-sig"))


def _pytorch(
    path: str | Path, kind: str, devices: int | None, kineto: Sequence[str | Path]
) -> TraceSet:
    """Convert the traces of PyTorch processes: one, or all ranks."""
    from perfmodel.workloads.convert.pytorch import pytorch_traces
    from perfmodel.workloads.formats.pytorch.host import read_host_trace
    from perfmodel.workloads.formats.pytorch.kineto import read_kineto

    files = rank_files(path)
    if kind == KINETO:
        return pytorch_traces([(None, read_kineto(file)) for file in files], devices)
    beside = [file for given in kineto for file in rank_files(given)]
    if beside and len(beside) != len(files):
        raise FormatError(
            f"{len(beside)} Kineto traces beside {len(files)} host traces; there should be one "
            "for each"
        )
    return pytorch_traces(
        [
            (read_host_trace(file), read_kineto(beside[rank]) if beside else None)
            for rank, file in enumerate(files)
        ],
        devices,
    )


def rank_files(path: str | Path) -> list[Path]:
    """Return the files that a path names, by rank.

    Parameters
    ----------
    path : str or Path
        One file; the folder or prefix of ``NAME.RANK.json``; a folder of PyTorch's profiler
        (`perfmodel.workloads.convert.profiler_files`); or a path with ``{rank}`` in it, and maybe
        ``{time}``.

    Raises
    ------
    FormatError
        There are none, or the file of a rank is missing.
    """
    from perfmodel.workloads.formats.chakra.files import files_of_ranks

    text = str(path)
    try:
        if TIME_PLACE in text:
            return stamped_files(path)
        recorded = folder_files(Path(path)) if Path(path).is_dir() else []
        if recorded:
            return recorded
        if RANK_PLACE not in text:
            return files_of_ranks(path)[0]
        files: list[Path] = []
        while (file := Path(text.replace(RANK_PLACE, str(len(files))))).is_file():
            files.append(file)
        found = sum(_is_number(name, text) for name in _names_beside(text))
    except OSError as error:
        raise FormatError(f"cannot read '{path}': {error.strerror or error}") from None
    if not files or found > len(files):
        raise FormatError(f"the file of rank {len(files)} is missing: '{file}'")
    return files


def _names_beside(text: str) -> list[str]:
    """Return the files that a path with ``{rank}`` in its last part may mean."""
    path = Path(text)
    if RANK_PLACE in str(path.parent) or not path.parent.is_dir():
        return []
    return [item.name for item in path.parent.iterdir()]


def _is_number(name: str, text: str) -> bool:
    """Tell whether a file's name is that of a path with a number for ``{rank}``."""
    before, after = Path(text).name.split(RANK_PLACE)[0], Path(text).name.split(RANK_PLACE)[-1]
    number = name[len(before) : len(name) - len(after)]
    return name.startswith(before) and name.endswith(after) and number.isdecimal()
