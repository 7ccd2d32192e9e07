"""Every kernel gives the same compiled and as plain Python.

The program is driven over random inputs with all kernels as plain Python, and what each kernel
was called with is kept. Compiled, each then has to return the same for the same arguments, and
to leave the same in the arrays that it fills: whole numbers and choices equal, others to the
second last digit that a float64 has.

Kernels that only kernels call are parts of those that Python calls. To compile them by themselves
takes minutes: that is done with ``--long``, as by ``make test-long``.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import perfmodel.kernels
from perfmodel.kernels import _jit
from tests.amount import LONG
from tests.properties import driving

pytestmark = pytest.mark.skipif(_jit.mode() != "always", reason="kernels are not compiled")

PACKAGE = "perfmodel.kernels."
KEPT = 12  # calls of each kernel
ULPS = 2
# What is compared of kernels that return memory nobody has written yet; of others, everything.
WRITTEN: dict[str, tuple[str, ...]] = {
    "workloads.astra.machine._new_work": (),
    "workloads.astra.machine_state.grown": (),
    "workloads.astra.machine_state.new_state": (),
    "pipeline.events.new_run": (),
    "workloads.trace.contention.new_sharing": (),
}


# Kernels of files, which plain Python calls with bytes and compiled code with arrays of them:
# `tests/oracles/test_chakra_protobuf.py` and `tests/workloads/formats/chakra` hold both against
# protobuf.
OF_FILES = (
    "workloads.trace.format_nodes.",
    "workloads.trace.parse_nodes.",
    "workloads.trace.wire.",
)


def kernels() -> dict[str, Any]:
    """All compiled functions of all modules of kernels, by the name of their own module."""
    found = {}
    for item in pkgutil.walk_packages(perfmodel.kernels.__path__, "perfmodel.kernels."):
        for name, value in vars(importlib.import_module(item.name)).items():
            if hasattr(value, "py_func") and value.__module__ == item.name:
                found[f"{item.name.removeprefix('perfmodel.kernels.')}.{name}"] = value
    return {name: value for name, value in found.items() if not name.startswith(OF_FILES)}


def copied(value: Any) -> Any:
    """A value with arrays and records of its own."""
    if isinstance(value, tuple):
        inner = [copied(item) for item in value]
        return type(value)(*inner) if hasattr(value, "_fields") else tuple(inner)
    return value.copy() if isinstance(value, np.ndarray | np.void) else value


class Recorder:
    """A kernel as plain Python that keeps some of its calls: the first, and ever fewer later ones.

    Millions come, most of one kernel by another: what says so is one look at who calls.
    """

    def __init__(self, function: Callable[..., Any], kernels: set[int]) -> None:
        self.function = self.py_func = function
        self.kernels = kernels  # what modules of kernels hold, by identity
        self.count = self.due = 0
        self.by_python = False
        self.calls: list[tuple[Any, Any, Any]] = []  # arguments, what they become, result

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if not self.by_python and id(sys._getframe(1).f_globals) not in self.kernels:
            self.by_python = True
        self.count += 1
        if self.count <= self.due:
            return self.function(*arguments, *keywords.values())
        arguments += tuple(keywords.values())
        before = copied(arguments)
        result = self.function(*arguments)
        call = before, copied(arguments), copied(result)
        if self.count <= KEPT:
            self.calls.append(call)
        else:
            self.calls[self.count * 7919 % KEPT] = call
            self.due = self.count + self.count * 7919 % (self.count // 2 + 2)
        return result


@pytest.fixture(scope="module")
def recorded() -> dict[str, tuple[Any, Recorder]]:
    """Every kernel, compiled and with what plain Python made of some calls."""
    known = kernels()
    inside = {id(vars(module)) for name, module in sys.modules.items() if name.startswith(PACKAGE)}
    recorders = {id(kernel): Recorder(kernel.py_func, inside) for kernel in known.values()}
    replaced = []
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGE) and module is not None:
            for attribute, value in list(vars(module).items()):
                if id(value) in recorders:
                    replaced.append((module, attribute, value))
                    setattr(module, attribute, recorders[id(value)])
    try:
        with np.errstate(all="ignore"):
            driving.everything(np.random.default_rng(11))
    finally:
        for module, attribute, value in replaced:
            setattr(module, attribute, value)
    return {name: (kernel, recorders[id(kernel)]) for name, kernel in known.items()}


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """What of one value is not as in another."""
    if isinstance(one, tuple | list):
        if len(one) != len(other):
            yield f"{path}: {len(one)} and {len(other)} values"
            return
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{path}[{number}]")
        return
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.names:
        for name in one.dtype.names:
            yield from differences(one[name], other[name], f"{path}.{name}")
        return
    if one.shape != other.shape:
        yield f"{path}: shapes {one.shape} and {other.shape}"
    elif one.dtype.kind == "f" or other.dtype.kind == "f":
        one, other = one.astype(np.float64), other.astype(np.float64)
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        with np.errstate(all="ignore"):
            near = np.abs(one - other) <= ULPS * np.spacing(np.maximum(np.abs(one), np.abs(other)))
        if not np.all(same | near):
            place = np.flatnonzero(~(same | near).ravel())[0]
            yield f"{path}: {one.ravel()[place]!r} and {other.ravel()[place]!r}"
    elif not np.array_equal(one, other):
        yield f"{path}: {one!r} and {other!r}"


def test_every_kernel_is_called(recorded):
    missing = [name for name, (_, recorder) in recorded.items() if not recorder.calls]
    assert len(recorded) > 200
    assert missing == []


def test_compiled_and_plain_kernels_agree(recorded):
    held = {name: it for name, it in recorded.items() if LONG or it[1].by_python}
    assert len(held) > 80
    wrong = []
    for name, (kernel, recorder) in held.items():
        for before, after, result in recorder.calls:
            arguments = copied(before)
            found = kernel(*arguments)
            if name in WRITTEN:
                found, result = ([getattr(x, y) for y in WRITTEN[name]] for x in (found, result))
            wrong += [f"{name} result{text}" for text in differences(found, result)]
            wrong += [f"{name} argument{text}" for text in differences(arguments, after)]
    assert wrong == []
