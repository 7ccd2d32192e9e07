"""What scripts that compare with a typed table of published figures share."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from perfmodel.base.errors import PerfModelError
from perfmodel.measured.compare import error_statistics

Found = TypeVar("Found")
HEADER = "median | mean | p90 | worst | bias"
"""Heads of the columns of `error_cells`."""


def error_cells(errors: Sequence[float]) -> list[str]:
    """Return the statistics of signed relative errors as cells of a table."""
    stated = error_statistics(np.array(errors))
    names = [f"{name}_absolute_error" for name in ("median", "mean", "p90", "worst")]
    return [*(f"{100 * stated[name]:.1f} %" for name in names), f"{100 * stated['bias']:+.1f} %"]


def run(
    script: str,
    description: str,
    table: Path,
    evaluate: Callable[[Path], list[Found]],
    markdown: Callable[[Sequence[Found]], Iterator[str]],
    document: Callable[[Sequence[Found]], Any],
    arguments: list[str] | None,
) -> int:
    """Compare with a table of published figures and print what was found.

    Parameters
    ----------
    script, description : str
        Name before errors; what ``--help`` says.
    table : Path
        Read where the command line names none.
    evaluate : callable
        From the table to what was found.
    markdown, document : callable
        From that to lines, and to what ``--json`` prints.
    arguments : list of str or None
        Of the command line; None: the program's.

    Returns
    -------
    int
        Exit code: 0, or 2 where the table cannot be read.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("file", nargs="?", type=Path, default=table)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        found = evaluate(options.file)
    except (PerfModelError, OSError) as error:
        print(f"{script}: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(document(found), indent=1))
    else:
        print("\n".join(markdown(found)))
    return 0
