"""GPU-free analytical performance model of LLM training and inference.

>>> from perfmodel import best, strategy_grid, sweep
>>> grid = strategy_grid("llama-3.1-70b", 1024, sequence_length=8192, global_batch_size=2048)
>>> results = sweep("llama-3.1-70b", grid, "dgx-h100")
>>> best(results, 5)
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the other imports much
import os
import sys


def _interrupted(number: int, frame: object) -> None:
    os.write(2, b"perfmodel: interrupted\n")
    os._exit(128 + number)


_PROGRAM = "".join(sys.argv[:1]) == "-m" or "perfmodel" in os.path.basename("".join(sys.argv[:1]))
if _PROGRAM and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Until the program's own handlers are there, which need what is imported below.
    signal.signal(signal.SIGINT, _interrupted)

import ast  # noqa: E402
from typing import Any  # noqa: E402

from perfmodel.base.version import __version__ as __version__  # noqa: E402

# Names are looked up on first use, so that importing the package stays fast. Where each is stands
# in the stub beside this file, which type checkers read.
_STUB = ast.parse(__loader__.get_data(f"{__file__}i"))  # type: ignore[name-defined]
_HOMES = {
    alias.name: node.module
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'perfmodel' has no attribute '{name}'")
    from perfmodel.base.wings import wing_module

    return getattr(wing_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
