"""Open whatever can be run as execution traces: Chakra itself, and what is converted to it.

What kind of workload a path names is told by content where names do not say.

``torch.profiler.tensorboard_trace_handler`` writes ``WORKER.TIME.pt.trace.json`` (or ``.json.gz``)
into one folder, each time a recording ends; WORKER is what the user says (``rank0``), or host and
process. A file's rank is that of its ``distributedInfo``, or else the number behind "rank" in its
name. Of several recordings, the last one of each rank is meant; all ranks should have as many,
since else their last ones may be of different steps.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.base.fields import refuse_unused
from perfmodel.workloads.formats.words import words_of
from perfmodel.workloads.trace import TraceSet

GZIP = b"\x1f\x8b"
RANK_PLACE, TIME_PLACE = "{rank}", "{time}"  # in a path
# Worker and time.
PROFILER_FILE = re.compile(r"(.+)\.([0-9]{1,20})\.pt\.trace\.json(?:\.gz)?", re.DOTALL)
PROFILER_HEAD = 1 << 20  # B; distributedInfo stands before the events
RANK = re.compile(r'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*([0-9]{1,7})\b')
RANK_IN_NAME = re.compile(r"rank[-_]?([0-9]{1,7})(?![0-9])", re.IGNORECASE)

Recordings = dict[int, list[tuple[int, Path]]]  # by rank: times and files


def folder_files(folder: Path) -> list[Path]:
    """Return the profiler's files in a folder by rank; none if it has no such files.

    Raises
    ------
    FormatError
        A rank is missing or not stated, or ranks have different numbers of recordings.
    OSError
        The folder cannot be read.
    """
    recordings: Recordings = {}
    unknown: dict[str, list[tuple[int, Path]]] = {}  # by worker
    for file in sorted(folder.iterdir()):
        match = PROFILER_FILE.fullmatch(file.name)
        if match is None:
            continue
        rank = _rank(file)
        found = recordings.setdefault(rank, []) if rank >= 0 else unknown.setdefault(match[1], [])
        found.append((int(match[2]), file))
    if len(unknown) == 1 and not recordings:
        recordings = dict(enumerate(unknown.values()))
    elif unknown:
        file = next(iter(unknown.values()))[0][1]
        raise FormatError(
            f"'{file}' does not say its rank, neither in distributedInfo nor in its name, such as "
            "rank0.TIME.pt.trace.json"
        )
    if len(recordings) == 1:  # one rank, whichever, may stand for all
        recordings = dict(enumerate(recordings.values()))
    return _latest(recordings, f"'{folder}'")


def stamped_files(path: str | Path) -> list[Path]:
    """Return the files of a path with ``{rank}`` and ``{time}`` in its last part, by rank.

    Raises
    ------
    FormatError
        There are none, or as of `folder_files`.
    OSError
        The folder cannot be read.
    """
    place = Path(path)
    parts = re.split(r"(\{rank\}|\{time\})", place.name)
    groups = {RANK_PLACE: r"(?P<rank>[0-9]{1,7})", TIME_PLACE: r"(?P<time>[0-9]{1,20})"}
    if (
        parts.count(RANK_PLACE) != 1
        or parts.count(TIME_PLACE) != 1
        or TIME_PLACE in str(place.parent)
    ):
        raise FormatError(f"'{path}': {{rank}} and {{time}} should stand once in the file's name")
    pattern = re.compile("".join(groups.get(part, re.escape(part)) for part in parts), re.DOTALL)
    recordings: Recordings = {}
    for file in sorted(place.parent.iterdir()) if place.parent.is_dir() else ():
        match = pattern.fullmatch(file.name)
        if match:
            recordings.setdefault(int(match["rank"]), []).append((int(match["time"]), file))
    if not recordings:
        raise FormatError(f"no file is called '{path}'")
    return _latest(recordings, f"'{path}'")


def _latest(recordings: Mapping[int, Sequence[tuple[int, Path]]], where: str) -> list[Path]:
    """Return the last recording of each rank."""
    for rank in range(len(recordings)):
        if rank not in recordings:
            raise FormatError(f"{where}: the file of rank {rank} is missing")
        if len(recordings[rank]) != len(recordings[0]):
            raise FormatError(
                f"{where}: rank {rank} has {len(recordings[rank])} recordings, rank 0 has "
                f"{len(recordings[0])}; all should have as many, so that the last ones are of the "
                "same steps"
            )
    return [max(recordings[rank])[1] for rank in range(len(recordings))]


def _rank(file: Path) -> int:
    """Return the rank of a profiler's file; -1 if neither content nor name tells it."""
    try:
        with file.open("rb") as plain:
            packed = plain.read(len(GZIP)) == GZIP
        with gzip.open(file) if packed else file.open("rb") as content:
            head = content.read(PROFILER_HEAD)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FormatError(f"'{file}': damaged gzip data: {error}") from None
    found = RANK.search(head.decode("utf-8", "replace")) or RANK_IN_NAME.search(file.name)
    return int(found[1]) if found else -1


CHAKRA = "chakra"
CHAKRA_JSON = "chakra-json"
ASTRA_TEXT = "astra-text"
AICB_TEXT = "aicb-text"
AICB_CSV = "aicb-csv"
VIDUR_CSV = "vidur-csv"
AIOB = "aiob"
FLEXFLOW = "flexflow"
PYTORCH = "pytorch"
KINETO = "kineto"
_WORDS = words_of("opening")
MEANINGS: dict[str, str] = _WORDS["meanings"]
HEAD = 1 << 16  # bytes that are looked at
# Header keys of SimAI's dialect of the text format; ASTRA-sim's has none of them.
SIMAI_KEYS = ("ep:", "pp:", "vpp:", "ga:", "all_gpus:", "pp_comm")

# In JSON: of the feeder's form and of the jsonizer's, and of Kineto's traces.
CHAKRA_KEYS = ('"workload_graph"', '"ctrlDep', '"dataDeps"', '_NODE"')
KINETO_KEYS = ('"traceEvents"', '"deviceProperties"', '"distributedInfo"', '"ph"')


def workload_kind(path: str | Path) -> str:
    """Return which kind of workload a path names.

    Parameters
    ----------
    path : str or Path
        A file; files of all ranks: their folder, their common prefix (``trace`` for
        ``trace.0.et``, ``trace.1.et``, …), or a name with ``{rank}`` in the place of the rank,
        and maybe ``{time}`` in that of a time stamp. A folder of PyTorch's profiler is known by its
        names.

    Returns
    -------
    str
        One of `MEANINGS`.

    Raises
    ------
    FormatError
        Nothing is there, or it is no workload that is known.
    """
    place = Path(str(path).replace(RANK_PLACE, "0"))
    try:
        if TIME_PLACE in str(path):
            return _of_file(stamped_files(path)[0])
        if place.is_dir():
            return _of_ranks(sorted(place.iterdir()), str(path))
        if not place.exists():
            named = place.name + "."
            folder = place.parent
            files = sorted(folder.iterdir()) if folder.is_dir() else []
            return _of_ranks([file for file in files if file.name.startswith(named)], str(path))
        return _of_file(place)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FormatError(f"'{path}': damaged gzip data: {error}") from None
    except OSError as error:
        raise FormatError(f"cannot read '{path}': {error.strerror or error}") from None


def _of_ranks(files: list[Path], shown: str) -> str:
    """Return the kind of one file per rank: that of rank 0."""
    for suffix in (".et", ".et.gz", ".json", ".json.gz"):
        for file in files:
            if file.name.endswith(".0" + suffix):
                return _of_file(file)
    for file in files:
        if PROFILER_FILE.fullmatch(file.name):
            return _of_file(file)
    raise FormatError(
        f"no workload at '{shown}': there should be a file, a folder of NAME.0.et, NAME.1.et, …, "
        "their common prefix NAME, a folder of PyTorch's profiler (WORKER.TIME.pt.trace.json), or "
        "a path with {rank} in it"
    )


def _of_file(path: Path) -> str:
    """Return the kind of a file, from its name if that says it, else from its first bytes."""
    with path.open("rb") as file:
        head = file.read(HEAD)
    if head.startswith(GZIP):
        with gzip.open(path) as unpacked:
            head = unpacked.read(HEAD)
    if path.suffix == ".et" or path.name.endswith(".et.gz"):
        return CHAKRA
    text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if text.startswith(("{", "[")):
        if any(key in text for key in CHAKRA_KEYS):
            return CHAKRA_JSON
        return KINETO if any(key in text for key in KINETO_KEYS) else PYTORCH
    first = text.split("\n", 1)[0]
    if first.startswith(("train_iter", "inference_term")):
        return AIOB
    if text.startswith("digraph"):
        return FLEXFLOW
    if first.startswith("comm_type,"):
        return AICB_CSV
    if first.startswith("layer_id"):
        return VIDUR_CSV
    words = first.split()
    if words and words[0].isascii() and words[0].replace("_", "").isupper():
        return AICB_TEXT if any(key in words for key in SIMAI_KEYS) else ASTRA_TEXT
    raise FormatError(
        f"'{path}' is no workload that is known; known are: " + "; ".join(MEANINGS.values())
    )


CONVERTIBLE = (ASTRA_TEXT, FLEXFLOW, PYTORCH, KINETO)
RUNNABLE = (CHAKRA, CHAKRA_JSON, *CONVERTIBLE)
INPUT_PURPOSES: Mapping[str, tuple[str, ...]] = _WORDS["purposes"]
INPUT_OPTIONS: Mapping[str, tuple[str, ...]] = _WORDS["options"]


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
        from perfmodel.workloads.formats.flexflow import flexflow_traces, read_flexflow

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
    from perfmodel.workloads.formats.astra_text import read_astra_text

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
    from perfmodel.workloads.formats.pytorch_host import read_host_trace
    from perfmodel.workloads.formats.pytorch_kineto import read_kineto

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
        (`perfmodel.workloads.convert.opening`); or a path with ``{rank}`` in it, and maybe
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
