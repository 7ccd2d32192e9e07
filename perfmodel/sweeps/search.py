"""Find the best strategies of spaces that are too large to be swept, and prove it.

Branch and bound in four steps, each of which proves away what it can:

1. *Layouts* (degrees, batches, schedule), with precision, documents and padding, and the level of
   recomputation: bounds of memory and compute (`perfmodel.training.bounds`). Best first:
2. how parameters are sharded and where ranks lie: the same bounds with the communication inside
   layers, then the projection without what is decided below, which bounds that;
3. which layers are recomputed: the same bounds of exactly these stages, then the projection;
4. what is offloaded, where that may be better: the projection.

Whatever is projected is projected by the ordinary sweep, and ranks as in its results: what is equal
stays in the order in which strategies are enumerated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DataError
from perfmodel.kernels.variables import RATE, SEARCHED_BY
from perfmodel.software.framework import Framework
from perfmodel.store.results import check_top
from perfmodel.strategy.factors import strategy_space
from perfmodel.sweeps.search_run import Searched, SearchResult, SearchRun
from perfmodel.sweeps.several import alike_by_default, combinations, named, none_possible

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.spec import ModelSpec


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
        for alike in alike_by_default(frameworks, model):
            space = strategy_space(model, count, given, hardware=hardware, framework=alike[0])
            found += [Searched(space, framework) for framework in alike]
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
        As of `perfmodel.sweeps.several.sweep`.

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
