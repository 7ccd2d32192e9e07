"""Files of PyTorch's profiler: which one is whose, and which of several recordings is meant.

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
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfmodel.base.errors import FormatError

GZIP = b"\x1f\x8b"
RANK_PLACE, TIME_PLACE = "{rank}", "{time}"  # in a path
# Worker and time.
PROFILER_FILE = re.compile(r"(.+)\.([0-9]{1,20})\.pt\.trace\.json(?:\.gz)?", re.DOTALL)
HEAD = 1 << 20  # B; distributedInfo stands before the events
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
            head = content.read(HEAD)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FormatError(f"'{file}': damaged gzip data: {error}") from None
    found = RANK.search(head.decode("utf-8", "replace")) or RANK_IN_NAME.search(file.name)
    return int(found[1]) if found else -1
