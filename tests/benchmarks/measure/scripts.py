"""The measuring scripts, and their arguments."""

from __future__ import annotations

import argparse
from types import ModuleType

from tests.data import BENCHMARKS

FOLDER = BENCHMARKS / "measure"
SCRIPTS = ("gemm", "attention", "stream", "step", "collective")


def arguments_of(module: ModuleType, *words: str) -> argparse.Namespace:
    found: argparse.Namespace = module.options().parse_args(words)
    return found
