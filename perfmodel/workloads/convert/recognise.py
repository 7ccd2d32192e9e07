"""Tell what kind of workload file a path names, by content where names do not say."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from perfmodel.base.errors import FormatError
from perfmodel.workloads.convert.profiler_files import (
    GZIP,
    PROFILER_FILE,
    RANK_PLACE,
    TIME_PLACE,
    stamped_files,
)

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
MEANINGS = {
    CHAKRA: "Chakra execution trace (protobuf, one file per rank)",
    CHAKRA_JSON: "Chakra execution trace (JSON, one file per rank)",
    ASTRA_TEXT: "ASTRA-sim 1.0 text workload",
    AICB_TEXT: "AICB/SimAI text workload",
    AICB_CSV: "AICB workload table",
    VIDUR_CSV: "AICB table for Vidur",
    AIOB: "AIOB computation file",
    FLEXFLOW: "FlexFlow task graph",
    PYTORCH: "PyTorch execution trace of the host",
    KINETO: "PyTorch profiler's trace of the device (Kineto)",
}
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
