"""Kernels as plain Python in a process that compiles them.

A process whose sweep is worth compiling for prices some hundred matrix products before, which is
not: compiling would take a hundred times as long as plain Python does.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from perfmodel.kernels._jit import MEMOISED, is_memoised

_KERNELS = __name__.rpartition(".")[0] + "."


@functools.cache
def uncompiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel as plain Python, and all that it calls; the digits are the same."""
    found = rebuilt(kernel, uncompiled, {})
    return functools.lru_cache(MEMOISED)(found) if is_memoised(_plain(kernel)) else found


def rebuilt(
    kernel: Callable[..., Any],
    again: Callable[..., Any],
    instead: Mapping[str, Callable[..., Any]],
) -> Callable[..., Any]:
    """Return a kernel with others in the place of the kernels that it calls.

    Parameters
    ----------
    kernel : callable
        Compiled or plain.
    again : callable
        What is called in the place of a kernel.
    instead : mapping
        What else is called in the place of some names.
    """
    plain = _plain(kernel)
    names = plain.__globals__.copy()
    for name in {it.argval for it in dis.get_instructions(plain) if it.opname == "LOAD_GLOBAL"}:
        called = _plain(names.get(name))
        if name in instead:
            names[name] = instead[name]
        elif isinstance(called, FunctionType) and called.__module__.startswith(_KERNELS):
            names[name] = again(names[name])
    return FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__)


def _plain(kernel: Any) -> Any:
    """Return a kernel as it was before it was compiled, or memoised."""
    kernel = getattr(kernel, "py_func", kernel)
    return getattr(kernel, "__wrapped__", kernel)
