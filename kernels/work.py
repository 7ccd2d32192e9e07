"""Whether work is worth compiling for: the one place that weighs it.

Who calls kernels says how much there is to do::

    with kernel_work(gemms=m.size):
        found = gemm.gemm_times(m, n, k, ...)

Kernels run as plain Python until all that this process has done and is to do now takes longer
so than loading compiled code, or compiling it where none lies in the cache; they stay compiled
from then on. Kinds that are priced *apart* are weighed by themselves all the same::

    with kernel_work(gemms=m.size) as run:
        found = run(gemm.gemm_times)(m, n, k, ...)

``PERFMODEL_JIT=always`` or ``never`` decides otherwise
(`perfmodel.kernels._jit.mode`).
"""

from __future__ import annotations

import contextlib
import csv
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from perfmodel.kernels._jit import (
    cache_folder,
    compile_kernels,
    compiling,
    is_plain_here,
    mode,
    plainly,
)
from perfmodel.kernels.uncompiled import uncompiled

Run = Callable[[Callable[..., Any]], Callable[..., Any]]


class Kind(NamedTuple):
    """What work of a kind takes [CPU s]."""

    plain: float  # one piece, uncompiled
    compile: float  # its kernels, where the cache lacks them
    load: float  # its kernels, where the cache has them
    kernel: str  # file and name of one of them, compiled last
    apart: bool = False  # whether it may run uncompiled where others are compiled


# One piece of strategies, gemms, attentions, streams, collectives and experts' routing was timed on
# one core of a 2-core virtual machine with Python 3.11 and Numba 0.68, other work beside it; so was
# what compiling and loading take of gemms, attentions, streams, collectives, requests, nodes of
# Chakra files and events (CPU of a first call less that of a second). The others are priors. What
# is really spent corrects them on the way.
with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as _rows:
    KINDS = {
        row["kind"]: Kind(
            float(row["plain"]),
            float(row["compile"]),
            float(row["load"]),
            row["kernel"],
            row["apart"] == "true",
        )
        for row in csv.DictReader(_rows)
    }
IMPORT = 0.45
"""Importing Numba and starting LLVM [CPU s]."""


class Choice(NamedTuple):
    """How some work is best done, and why."""

    compiled: bool
    cached: bool  # whether compiled code for it lies on disk
    reason: str


listener: Callable[[Choice], None] | None = None
"""Told once, before kernels are compiled or loaded."""

_clock = time.thread_time
_lock = threading.Lock()
_settled: Choice | None = None  # compiled, for good, and why
_inside = 0  # works that are under way uncompiled
_done: dict[str, float] = {}  # all work so far, by kind
_estimated = 0.0  # what uncompiled work so far should have taken [CPU s]
_spent = 0.0  # and what it took
_ready: set[str] = set()  # kinds that are compiled where they are weighed apart,
_apart: dict[str, float] = {}  # and what those that are not yet took so far [CPU s]

TRUST = 0.1
"""Uncompiled work by which an estimate is doubted as much as it is trusted [CPU s]."""


@contextlib.contextmanager
def kernel_work(**amounts: float) -> Iterator[Run]:
    """Choose how kernels run, and run some work with them.

    Inside, NumPy does not warn where plain Python does and compiled code does not (numbers
    that overflow, or are none).

    Parameters
    ----------
    amounts : float
        How many pieces of work of which of the `KINDS`.

    Yields
    ------
    callable
        Takes a kernel and returns it as it is best run, for kinds that are weighed apart.
    """
    global _inside, _estimated, _spent
    if is_plain_here():  # within work that is small
        yield uncompiled
        return
    expect(**amounts)
    with _lock:
        compiled = compiling()
        outermost = not _inside
        _inside += not compiled
        for kind, amount in amounts.items():
            _done[kind] = _done.get(kind, 0.0) + amount
        small = compiled and _is_small(amounts)
    if compiled and not small:
        yield _as_it_is
        return
    import numpy as np

    began = _clock()
    if small:
        with plainly(), np.errstate(all="ignore"):
            yield uncompiled
        took = _clock() - began
        with _lock:
            for kind in amounts:
                _apart[kind] = _apart.get(kind, 0.0) + took
        return
    try:
        with np.errstate(all="ignore"):
            yield _as_it_is
    finally:
        with _lock:
            _inside -= 1
            _estimated += _seconds(amounts)
            _spent += _clock() - began if outermost else 0.0


def _as_it_is(kernel: Callable[..., Any]) -> Callable[..., Any]:
    return kernel


def _is_small(amounts: Mapping[str, float]) -> bool:
    """Tell whether work is done sooner than its kernels are compiled, or loaded, apart."""
    if mode() == "always" or not all(KINDS[kind].apart for kind in amounts):
        return False
    for kind in amounts.keys() - _ready:
        of = KINDS[kind]
        plain = _apart.get(kind, 0.0) + amounts[kind] * of.plain
        if plain > of.compile or (plain > of.load and not _missing([of])):
            _ready.add(kind)
    return not amounts.keys() <= _ready


def expect(**amounts: float) -> None:
    """Choose how kernels run in view of work that lies ahead; `kernel_work` counts it later.

    Nothing changes while plain kernels run, here or in another thread: what they hand each
    other is not what compiled ones take.
    """
    global _settled
    if _settled is not None:
        return
    with _lock:
        if _settled is not None or _inside:
            return
        chosen = choice(amounts)
        if chosen.compiled:
            if listener is not None:
                listener(chosen)
            compile_kernels()
            _settled = chosen


def amounts_so_far() -> dict[str, float]:
    """Return how many pieces of work of which kind this process has done."""
    with _lock:
        return dict(_done)


def choice_so_far() -> Choice | None:
    """Return the choice for what this process has done; None where that was nothing."""
    if _settled is not None:
        return _settled
    return choice({}) if any(_done.values()) else None


def choice(ahead: Mapping[str, float]) -> Choice:
    """Return how work of the `KINDS` is best done, after what this process has done so far.

    Time that went into uncompiled work counts as much as time that it would still take: so no
    process takes much longer than twice the best, however little was known of its work. How
    far estimates were off so far, they will be.
    """
    if mode() == "never":
        return Choice(False, False, "PERFMODEL_JIT=never or NUMBA_DISABLE_JIT=1")
    names = {kind for work in (_done, ahead) for kind, amount in work.items() if amount}
    kinds = [KINDS[name] for name in sorted(names)]
    if mode() == "always":
        return Choice(True, not _missing(kinds), "PERFMODEL_JIT=always")
    doubt = (_spent + TRUST) / (_estimated + TRUST)
    plain = _spent + _seconds(ahead) * doubt
    load = IMPORT + sum(kind.load for kind in kinds)
    small = f"about {plain:.2g} s of work"
    if plain <= load:
        reason = f"{small}, while loading compiled kernels takes {load:.2g} s"
        return Choice(False, False, reason)
    missing = _missing(kinds)
    ready = load
    for name, kind in zip(sorted(names), kinds, strict=True):
        if kind in missing:
            done = _done.get(name, 0.0) * kind.plain
            over = name not in ahead and done < TRUST  # little, and nothing says that more comes
            apart = done + ahead.get(name, 0.0) * kind.plain if kind.apart or over else math.inf
            ready += min(kind.compile, apart * doubt) - kind.load
    what = "compiling" if missing else "loading"
    reason = f"{small} uncompiled, while {what} them takes {ready:.2g} s"
    return Choice(plain > ready, not missing, reason)


def _seconds(amounts: Mapping[str, float]) -> float:
    return sum(amount * KINDS[kind].plain for kind, amount in amounts.items())


def _missing(kinds: list[Kind]) -> list[Kind]:
    """Return the kinds of which no compiled code lies in the cache."""
    folder = cache_folder()
    files = (file for _, _, own in os.walk(folder) for file in own) if folder else ()
    kept = {file.partition("-")[0] for file in files if file.endswith(".nbi")}
    return [kind for kind in kinds if kind.kernel not in kept]
