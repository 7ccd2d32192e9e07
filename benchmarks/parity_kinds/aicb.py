"""Compare AICB's generators with the files that AICB itself wrote.

``compare(folder)`` reads ``manifest.csv`` (one command of AICB per row, and the file that it
wrote), generates every file from its command, and compares byte for byte. Computation files
lie in ``aiob_inputs``.
"""

from __future__ import annotations

import shlex
from collections import Counter
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any

from parity_kinds.rows import error_statistics

from perfmodel.base.errors import PerfModelError
from perfmodel.measured.rows import MeasuredRow, read_rows
from perfmodel.workloads.formats.aiob import AiobFile, read_aiob
from perfmodel.workloads.twins.aicb.arguments import (
    AicbArguments,
    file_name,
    generate,
    parse_arguments,
)

COLUMNS = ("file", "id", "original_name", "command", "rc", "error")


def compare(path: Path) -> dict[str, Any]:
    """Compare every file of a folder.

    Parameters
    ----------
    path : path
        Folder with ``manifest.csv``, ``workloads`` and ``aiob_inputs``.

    Returns
    -------
    dict
        ``kind``, ``count`` (files compared, and commands that AICB fails at and we refuse),
        ``exact`` (equal to the byte), ``worst_relative_error`` and ``median_relative_error``
        (share of a file's lines that differ; None without files), ``uncovered`` {reason:
        count}, ``generators`` (the same by generator), ``differing`` (file: first line that
        differs) and ``names`` (files whose name is AICB's too).

    Raises
    ------
    DataError
        ``manifest.csv`` is missing or malformed.
    """
    path = Path(path)
    _, rows = read_rows(path / "manifest.csv", list(COLUMNS))
    errors: dict[str, list[float]] = {}
    uncovered: Counter[str] = Counter()
    differing: dict[str, str] = {}
    names: list[bool] = []
    for row in rows:
        try:
            arguments = parse_arguments(shlex.split(row.text("command")))
        except (PerfModelError, ValueError) as error:
            if _failed(row):
                errors.setdefault("refused", []).append(0.0)
            else:
                uncovered[f"command of {row.text('id')}: {error}"] += 1
            continue
        of_generator = errors.setdefault(arguments.generator, [])
        file = path / row.text("file")
        try:
            text = generate(arguments, _computation(arguments, path))
        except PerfModelError as error:
            if _failed(row):
                of_generator.append(0.0)
            else:
                uncovered[f"{arguments.generator}: {error}"] += 1
            continue
        if _failed(row) or not file.is_file():
            uncovered[f"{arguments.generator}: no file of {row.text('id')}"] += 1
            continue
        names.append(PurePosixPath(row.text("original_name")).name == file_name(arguments))
        share, line = difference(text, file.read_bytes())
        of_generator.append(share)
        if share:
            differing[row.text("file")] = line
    return {
        "kind": "aicb",
        **error_statistics([error for group in errors.values() for error in group]),
        "uncovered": dict(uncovered),
        "generators": {name: error_statistics(group) for name, group in errors.items()},
        "differing": differing,
        "names": {"count": len(names), "exact": sum(names)},
    }


def difference(text: str, reference: bytes) -> tuple[float, str]:
    """Return the share of lines that differ, and the first of them; 0 only for equal bytes."""
    if text.encode() == reference:
        return 0.0, ""
    pairs = list(
        zip_longest(text.split("\n"), reference.decode("utf-8", "replace").split("\n"))
    )  # fmt: skip
    wrong = [i for i, (ours, theirs) in enumerate(pairs) if ours != theirs] or [0]
    ours, theirs = pairs[wrong[0]]
    return len(wrong) / len(pairs), f"line {wrong[0] + 1}: '{ours}' instead of '{theirs}'"


def _failed(row: MeasuredRow) -> bool:
    """Return whether AICB wrote no file."""
    return bool(row.text("error")) or row.text("rc") not in ("0", "0.0")


def _computation(arguments: AicbArguments, path: Path) -> AiobFile | None:
    """Return the computation file of a command: its path begins in AICB's own checkout."""
    if arguments.comp_filepath is None:
        return None
    return read_aiob(path / arguments.comp_filepath.removeprefix("workload/"))


def table(document: dict[str, Any]) -> list[str]:
    """Return the lines of a table by generator, and the files that differ."""
    lines = ["generator     files  exact   worst"]
    for name, group in document["generators"].items():
        worst = "      -"
        if group["count"]:
            worst = f"{group['worst_relative_error']:7.2%}"
        lines.append(f"{name:12}  {group['count']:5d}  {group['exact']:5d} {worst}")
    lines.append("")
    names = document["names"]
    lines.append(f"names: {names['exact']} of {names['count']} are AICB's")
    lines += [f"{file}: {line}" for file, line in document["differing"].items()]
    return [*lines, ""]
