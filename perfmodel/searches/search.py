"""Find the best strategies of spaces that are too large to be swept, and prove it.

Branch and bound in four steps, each of which proves away what it can:

1. *Layouts* (degrees, batches, schedule), with precision, documents and padding, and the level of
   recomputation: bounds of memory and compute (`perfmodel.training.bounds`). Best first:
2. how parameters are sharded and where ranks lie: the same bounds with the communication inside
   layers, then the projection without what is decided below, which bounds that;
3. which layers are recomputed: the same bounds of exactly these stages, then the projection;
4. what waits elsewhere, where that may be better: the projection.

Whatever is projected is projected by the ordinary sweep, and ranks as in its results: what is equal
stays in the order in which strategies are enumerated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from perfmodel.base.errors import DataError
from perfmodel.base.table import Table
from perfmodel.kernels.variables import RATE, SEARCHED_BY
from perfmodel.searches.search_run import SearchRun
from perfmodel.software.framework import Framework
from perfmodel.store.results import LARGER_IS_BETTER, Ranked, best, check_top
from perfmodel.strategy.factors import Space, strategy_space
from perfmodel.sweeps.several import combinations, named, none_possible

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.build import ModelSpec

REASONS = ("memory", "compute", "communication")


class Searched(NamedTuple):
    """One problem of a search: a space of strategies, and the software that runs them."""

    space: Space
    framework: Framework


@dataclass(slots=True)
class SearchResult:
    """What a search has found, and how.

    Attributes
    ----------
    table : Table or None
        Results of the best strategies, on all rows of hardware, in the order of their enumeration;
        None where none fits.
    possible : int
        Strategy-device pairs of the whole space.
    rejected : dict of str to int
        Impossible strategies by the name of the rule that they break.
    proved : dict of str to int
        Pairs that a bound of memory, of compute, or of compute with communication proved away.
    evaluated : int
        Pairs that were projected.
    lacking : dict of str to int
        Pairs by the hardware that has no matrix rate for their precision.
    unsettled : int
        Pairs that were left when the time was over.
    bound : float or None
        No unsettled strategy ranks better than this; None where none is left.
    least_memory : dict of str to float
        What any strategy needs at least, by hardware [B].
    seconds : float
    top : int
    by : str
        As searched for.
    """

    table: Table | None = None
    possible: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    proved: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    evaluated: int = 0
    lacking: dict[str, int] = field(default_factory=dict)
    unsettled: int = 0
    bound: float | None = None
    least_memory: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    top: int = 5
    by: str = RATE

    @property
    def strategies(self) -> Ranked:
        """The best strategies as dictionaries, best first."""
        return Ranked() if self.table is None else best(self.table, self.top, by=self.by)

    @property
    def gap(self) -> float:
        """What the best strategy could still be bettered by, relative to it; 0: proved."""
        if self.bound is None:
            return 0.0
        found = self.strategies
        if not found:
            return math.inf
        value = float(found[0][self.by])
        return max(
            0.0,
            self.bound / value - 1.0 if self.by in LARGER_IS_BETTER else 1.0 - self.bound / value,
        )


def search(
    models: ModelSpec | str | Sequence[ModelSpec | str],
    hardware: Hardware | str | Sequence[Hardware | str],
    devices: int | Sequence[int],
    *,
    sequence_length: int | Sequence[int],
    global_batch_size: int | Sequence[int],
    framework: str | Framework | Sequence[str | Framework] = "megatron",
    scaling: str = "strong",
    mtp: str = "none",
    top: int = 5,
    by: str = RATE,
    safe: bool = False,
    seconds: float | None = None,
    **axes: Any,
) -> SearchResult:
    """Find the best strategies of a space that is too large to be swept.

    Parameters
    ----------
    models : ModelSpec or str, or sequence of them
    hardware : Hardware or str, or sequence of them
    devices : int or sequence of int
    sequence_length, global_batch_size, **axes
        As of `strategy_grid`.
    framework : str or Framework, or sequence of them
    scaling : {"strong", "weak"}
    mtp : {"none", "stated"}
        As of `sweep_several`.
    top : int
        How many.
    by : str
        One of `perfmodel.kernels.variables.SEARCHED_BY`.
    safe : bool
        A strategy fits where the 90th percentile of its memory does.
    seconds : float, optional
        Stop then, and say how much better what is left could be.

    Returns
    -------
    SearchResult
        Its ``strategies`` are what ``best`` of a sweep of the whole space would give.

    Raises
    ------
    StrategyError
        As of `sweep_several`.
    DataError
        As of `search_spaces`.

    Examples
    --------
    >>> found = search("gpt3-175b", ["dgx-h100", "dgx-b200"], [1024, 2048], mapping="all",
    ...                sequence_length=2048, global_batch_size=1536)
    >>> found.strategies
    """
    axes |= {"sequence_length": sequence_length, "global_batch_size": global_batch_size}
    asked = named(models, hardware, devices, framework, axes, mtp)
    problems = searched_problems(**asked, scaling=scaling)
    found = search_spaces(problems, asked["hardware"], top=top, by=by, safe=safe, seconds=seconds)
    if not found.possible:
        raise none_possible(found.rejected, asked["devices"])
    return found


def searched_problems(
    models: Sequence[ModelSpec],
    frameworks: Sequence[Framework],
    devices: Sequence[int],
    axes: Mapping[str, Any],
    *,
    hardware: Sequence[Hardware],
    scaling: str = "strong",
) -> list[Searched]:
    """Return the space of every model on every number of devices, for every software.

    Takes what `perfmodel.sweeps.several.enumerate_problems` takes, in the order of its problems.
    """
    found = []
    for model, count, given in combinations(models, frameworks, devices, axes, scaling):
        space = strategy_space(model, count, given, hardware=hardware)
        found += [Searched(space, framework) for framework in frameworks]
    return found


def search_spaces(
    problems: Sequence[Searched],
    hardware: Sequence[Hardware],
    *,
    top: int = 5,
    by: str = RATE,
    safe: bool = False,
    seconds: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    hardware_values: Mapping[str, Sequence[float]] | None = None,
) -> SearchResult:
    """Return the best strategies of several spaces on several devices.

    Parameters
    ----------
    problems : sequence of Searched
    hardware : sequence of Hardware
    top : int
        How many.
    by : str
        One of `perfmodel.kernels.variables.SEARCHED_BY`.
    safe : bool
        As of `perfmodel.store.results.decide_safely`.
    seconds : float, optional
        Stop then, and say how much better what is left could be.
    progress : callable, optional
        Called with the pairs that are settled, and with all.
    hardware_values
        As of `perfmodel.sweeps.kept.sweep`.

    Raises
    ------
    DataError
        Another objective, or a number of strategies that is not positive.
    StrategyError
        Something may wait with a host that a profile does not have.
    """
    if by not in SEARCHED_BY:
        raise DataError(f"a search cannot rank by '{by}'; it can by {', '.join(SEARCHED_BY)}")
    check_top(top)
    start = time.monotonic()
    result = SearchResult(top=top, by=by)
    result.possible = sum(it.space.possible for it in problems) * len(hardware)
    for it in problems:
        for name, count in it.space.rejected.items():
            result.rejected[name] = result.rejected.get(name, 0) + count
    end = None if seconds is None else start + seconds
    found = SearchRun(problems, hardware, top, by, safe, end, progress, result)
    found.run()
    result.table = found.winners(hardware_values)
    result.seconds = time.monotonic() - start
    return result
