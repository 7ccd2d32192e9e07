"""Compare with reference outputs of the systems that this one replaces.

    python benchmarks/parity.py astra collectives_unaware.csv [--json]
    python benchmarks/parity.py simai FOLDER [--json]
    python benchmarks/parity.py schedules torch_schedules_dev.json.gz [--json]

Prints rows compared, rows equal to the reference, and the worst and the median relative
error; with ``--json`` as one document. Exit code 2 for files that cannot be compared.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from perfmodel.base.errors import FormatError, PerfModelError

# kind: module with `compare(path) -> dict` and, for people, `table(document) -> list of str`.
KINDS = {
    "astra": "parity_kinds.astra",
    "simai": "parity_kinds.simai",
    "aicb": "parity_kinds.aicb",
    "astra-text": "parity_kinds.astra_text",
    "stage": "parity_kinds.stage",
    "wse": "parity_kinds.wse",
    "astra-real": "parity_kinds.astra_real",
    "schedules": "parity_kinds.schedules",
}


def module_of(kind: str) -> Any:
    """Return the module that compares a kind."""
    if kind not in KINDS:
        raise FormatError(f"unknown kind '{kind}'; known kinds: {', '.join(KINDS)}")
    return importlib.import_module(KINDS[kind])


def text(document: dict[str, Any], lines: list[str]) -> str:
    """Return a document for people."""
    errors = "none compared"
    if document["count"]:
        errors = (
            f"worst {document['worst_relative_error']:.3%}, "
            f"median {document['median_relative_error']:.3%}"
        )
    lines = [*lines, f"{document['exact']} of {document['count']} exact; {errors}"]
    lines += [f"not covered: {count} × {why}" for why, count in document["uncovered"].items()]
    return "\n".join(lines)


def main() -> int:
    """Compare one file or folder; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", help=", ".join(KINDS))
    parser.add_argument("path", type=Path, help="file or folder of reference outputs")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    try:
        module = module_of(options.kind)
        document = module.compare(options.path)
    except PerfModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        lines = module.table(document) if hasattr(module, "table") else []
        print(text(document, lines))
    return 0


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
