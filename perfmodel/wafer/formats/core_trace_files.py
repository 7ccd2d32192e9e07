"""Folders of core traces: a file per core, written piece by piece.

``traces/<phase>/node_<node>/<step>/core_<core>.csv``, as the wafer workload generator names
them. Text is made and put into the files whenever so many instructions have come together,
so that memory does not grow with their number.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from perfmodel.base.errors import MACHINE_FAILURES, DataError, MachineError
from perfmodel.base.files import TEMPORARIES, check_writable, user_path
from perfmodel.wafer.formats.core_trace import TracePiece, format_pieces

GATHERED = 2**19
"""Instructions that are held before they become text; about 100 B each."""

FOLDER = "traces"


def write_core_traces(
    folder: str | os.PathLike[str],
    step: str,
    nodes: Iterable[int],
    cores: int,
    pieces: Iterable[tuple[int, Sequence[TracePiece]]],
    phase: str = "decode",
) -> int:
    """Write the traces of some nodes; a folder of traces that is there is replaced.

    Parameters
    ----------
    folder : str or path
        Where ``traces`` is to stand.
    step : str
        Such as ``decode0``.
    nodes : iterable of int
        Nodes that are written; the pieces of others are passed over.
    cores : int
        Of a node.
    pieces : iterable of (int, sequence of TracePiece)
        Node and instructions, in order.
    phase : str, optional
        Name of the folder between.

    Returns
    -------
    int
        Lines written.

    Raises
    ------
    DataError
        The folder cannot be written, or holds something else under that name; nothing is
        left half-written.
    MachineError
        The disk is full, or the like.
    """
    target = user_path(folder) / FOLDER
    with replaced_traces(target) as temporary:
        places = {node: temporary / phase / f"node_{node}" / step for node in nodes}
        for place in places.values():
            place.mkdir(parents=True)
            for core in range(cores):  # one without any instruction has an empty file
                (place / f"core_{core}.csv").touch()
        following = {node: np.zeros(cores, np.int64) for node in places}
        gathered: dict[int, list[TracePiece]] = {}
        count = 0
        for node, made in pieces:
            if node in places:
                gathered.setdefault(node, []).extend(made)
                count += sum(len(piece.instructions.lines) for piece in made)
            if count >= GATHERED:
                _append(gathered, following, places)
                gathered, count = {}, 0
        _append(gathered, following, places)
    return sum(int(numbers.sum()) for numbers in following.values())


def _append(
    gathered: dict[int, list[TracePiece]],
    following: dict[int, np.ndarray],
    places: dict[int, Path],
) -> None:
    for node, pieces in gathered.items():
        for core, text in format_pieces(pieces, following[node]):
            with (places[node] / f"core_{core}.csv").open("ab") as file:
                file.write(text)


@contextlib.contextmanager
def replaced_traces(target: Path) -> Iterator[Path]:
    """Give a temporary folder beside `target`, renamed to it on success, removed on failure."""
    check_writable(target.parent / f".{target.name}.check")
    if target.exists() and not _is_traces(target):
        raise DataError(
            f"cannot write '{target}': it exists and holds something else than traces of cores"
        )
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    TEMPORARIES.add(temporary)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o777 & ~umask)
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
    except OSError as error:
        kind = MachineError if error.errno in MACHINE_FAILURES else DataError
        raise kind(f"cannot write '{target}': {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        TEMPORARIES.discard(temporary)


def _is_traces(target: Path) -> bool:
    """Whether a folder holds nothing but folders of nodes below folders of phases."""
    return target.is_dir() and all(
        phase.is_dir() and all(node.name.startswith("node_") for node in phase.iterdir())
        for phase in target.iterdir()
    )
