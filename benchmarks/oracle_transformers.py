"""Hold the model readers against transformers, instantiated without weights.

    python benchmarks/oracle_transformers.py defaults [--write FILE]
    python benchmarks/oracle_transformers.py count FILE… [--json]
    python benchmarks/oracle_transformers.py classes [MODEL_TYPE …] [--json]
    python benchmarks/oracle_transformers.py files PATH… [--json]
    python benchmarks/oracle_transformers.py flops PATH… [--seq-len S] [--json]
    python benchmarks/oracle_transformers.py saved PATH… [--seq-len S] [--layer I] [--eager]

Needs the extra ``oracle`` (torch and transformers, on any CPU). Models are built on
PyTorch's meta device: shapes without storage, so that a trillion parameters cost nothing.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    whole = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = whole.add_subparsers(dest="command", required=True)

    def command(name: str, what: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=what, description=what)
        added.add_argument("--json", action="store_true", help="one JSON document on stdout")
        return added

    defaults = command("defaults", "class defaults of every language model, as JSON")
    defaults.add_argument("--write", type=Path, help="file to write instead of stdout")
    count = command("count", "parameters of files as transformers counts them")
    count.add_argument("files", type=Path, nargs="+", metavar="FILE")
    classes = command("classes", "compare counts for the default configuration of decoder classes")
    classes.add_argument("names", nargs="*", metavar="MODEL_TYPE", help="all where none is named")
    classes.add_argument("--all", action="store_true", help="encoder-decoders and wrappers, too")
    files = command("files", "compare counts for files, or all JSON files of folders")
    files.add_argument("paths", type=Path, nargs="+", metavar="PATH")
    flops = command("flops", "compare FLOP of forward and backward with torch's count")
    flops.add_argument("paths", type=Path, nargs="+", metavar="PATH")
    flops.add_argument("--seq-len", type=int, default=256, help="tokens (default: %(default)s)")
    saved = command("saved", "compare the bytes that a layer keeps for backward")
    saved.add_argument("paths", type=Path, nargs="+", metavar="PATH")
    saved.add_argument("--seq-len", type=int, default=4096, help="tokens (default: %(default)s)")
    saved.add_argument("--layer", type=int, help="number of a layer (default: one of each kind)")
    saved.add_argument("--eager", action="store_true", help="as eager autograd saves, not compiled")
    return whole


def main() -> int:
    """Run one command; return the exit code."""
    options = parser().parse_args()
    return int(importlib.import_module(f"oracle.{options.command}").run(options))


if __name__ == "__main__":
    sys.exit(main())
