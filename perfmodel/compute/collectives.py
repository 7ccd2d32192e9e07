"""Times of collectives on a hardware profile; the labelled pair of `kernels.collective.times`.

Sizes follow nccl-tests: all-reduce, the buffer of one rank; all-gather, the
whole output; reduce-scatter, the whole input; all-to-all, the whole send
buffer of one rank; gather and scatter, the whole buffer of the root; otherwise the
message. A group is the
ranks r, r + stride, ..., r + (members - 1) stride in a numbering where the
innermost network level is contiguous. Every level's ``size`` counts domains of
the level below (devices, on level 0). All groups of a shape run at once.

Numba is imported inside the functions that need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.collectives import ALGORITHMS, ALGORITHMS_OF, COLLECTIVES, PROTOCOLS
from perfmodel.base.columns import broadcast
from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.compute.network import is_scale_out, network_table

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware


@dataclass(frozen=True, slots=True)
class CollectiveResult:
    """Priced collectives, one row each.

    Attributes
    ----------
    time : float64[rows]
        Completion time [s]; 0 for a single member or nothing to send, infinite where the
        algorithm or the protocol needs what the network lacks.
    algorithm, protocol : int8[rows]
        Positions in `ALGORITHMS` and `PROTOCOLS` of what runs; -1 where nothing does.
    """

    time: NDArray[np.float64]
    algorithm: NDArray[np.int8]
    protocol: NDArray[np.int8]


def algorithms_of(kind: str) -> tuple[str, ...]:
    """Return the algorithms that perform a collective.

    Raises
    ------
    StrategyError
        Unknown collective.

    Examples
    --------
    >>> algorithms_of("all_to_all")
    ('direct', 'hierarchical', 'rail_aligned')
    """
    return ALGORITHMS_OF[COLLECTIVES[int(_codes(kind, COLLECTIVES, "collective")[0])]]


def collective_choices(
    hardware: Hardware | str,
    kind: Any,
    size: ArrayLike,
    members: ArrayLike,
    stride: ArrayLike = 1,
    algorithm: Any = "auto",
    protocol: Any = "auto",
) -> CollectiveResult:
    """Price collectives, and say which algorithm and protocol run.

    Parameters
    ----------
    hardware : Hardware
        A profile with ``[calibration.network]``.
    kind : str, int, or array of these
        Names in `COLLECTIVES` or their codes.
    size : array of float
        [B], nccl-tests convention (see the module).
    members : array of int
        Ranks of a group, >= 1.
    stride : array of int
        Distance between neighbouring ranks of a group, >= 1.
    algorithm : str, int, or array of these
        Names in `ALGORITHMS` or their codes; "auto" or -1: what the device's library takes.
    protocol : str, int, or array of these
        Names in `PROTOCOLS` or their codes; "auto" or -1: with a given algorithm the
        fastest, else what the library takes.

    Returns
    -------
    CollectiveResult
        The arguments are broadcast together, then flattened.

    Raises
    ------
    StrategyError
        Unknown collective, algorithm or protocol, an algorithm that does not perform the
        collective, a size that is negative or not finite, members or stride below one or
        not whole, shapes that do not broadcast.
    HardwareError
        See `network_table`.
    """
    from perfmodel.hwprofiles import load_hardware

    hardware = load_hardware(hardware)
    from perfmodel.kernels.collective import times as kernels
    from perfmodel.kernels.plain import plain
    from perfmodel.kernels.work import kernel_work

    sizes = np.atleast_1d(np.asarray(size, dtype=np.float64))
    if not np.all(np.isfinite(sizes) & (sizes >= 0.0)):
        bad = sizes[~(np.isfinite(sizes) & (sizes >= 0.0))].flat[0]
        raise StrategyError(f"collective size {bad} B; a size is finite and >= 0")
    columns = {
        "kind": _codes(kind, COLLECTIVES, "collective"),
        "size": sizes,
        "members": _whole(members, "members"),
        "stride": _whole(stride, "stride"),
        "algorithm": _codes(algorithm, ALGORITHMS, "algorithm", auto=True),
        "protocol": _codes(protocol, PROTOCOLS, "protocol", auto=True),
    }
    alike = broadcast("collectives", columns, dtype=None, error=StrategyError)
    codes, sizes, ranks, steps, algorithms, protocols = alike.values()
    _check_algorithms(codes, algorithms)
    chosen = algorithms >= 0
    named = chosen | (protocols >= 0)
    with kernel_work(collectives=sizes.size + int(np.count_nonzero(named))) as run:
        network = plain(network_table(hardware))
        group = plain(sizes), plain(ranks), plain(steps), network
        time, taken, used = run(kernels.collective_choices)(plain(codes), *group)
        if not named.any():
            return CollectiveResult(time, taken, used)
        algorithms = np.where(chosen, algorithms, taken)[named].astype(np.int64)
        given = (codes[named], algorithms, protocols[named], sizes[named], ranks[named])
        time[named], used[named] = run(kernels.algorithm_times)(
            *map(plain, (*given, steps[named])), network
        )
    taken[named] = np.where(used[named] < 0, -1, algorithms)
    return CollectiveResult(time, taken, used)


def collective_times(
    hardware: Hardware | str,
    kind: Any,
    size: ArrayLike,
    members: ArrayLike,
    stride: ArrayLike = 1,
    algorithm: Any = "auto",
    protocol: Any = "auto",
) -> NDArray[np.float64]:
    """Return completion times of collectives; see `collective_choices`.

    Returns
    -------
    float64[rows]
        [s].
    """
    return collective_choices(hardware, kind, size, members, stride, algorithm, protocol).time


def link_occupancies(
    hardware: Hardware, kind: str, size: ArrayLike, members: ArrayLike, stride: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how long collectives keep the links of their devices busy, level by level.

    Parameters are those of `collective_times`.

    Returns
    -------
    busy : float64[rows, levels]
        Bytes of the busiest member over the achievable bandwidth of the links that serve
        the group [s]; 0 on levels that it does not cross. Latencies are not in it.
    part : float64[rows, levels]
        Of a device's bandwidth into the level that these links make up.
    """
    from perfmodel.kernels.collective import times as kernel
    from perfmodel.kernels.plain import plain
    from perfmodel.kernels.work import kernel_work

    chosen = collective_choices(hardware, kind, size, members, stride).algorithm
    sizes, ranks, steps = (
        np.broadcast_to(np.asarray(column, dtype), chosen.shape).copy()
        for column, dtype in ((size, np.float64), (members, np.int64), (stride, np.int64))
    )
    codes = np.full(chosen.shape, COLLECTIVES.index(kind))
    given = codes, chosen.astype(np.int64), sizes, ranks, steps, network_table(hardware)
    with kernel_work(collectives=sizes.size) as run:
        return run(kernel.link_occupancies)(*map(plain, given))


def members_per_domain(
    hardware: Hardware, members: ArrayLike, stride: ArrayLike
) -> NDArray[np.int64]:
    """Count the members of groups inside one domain of every network level.

    Parameters
    ----------
    hardware : Hardware
    members, stride : array of int
        As in `collective_times`.

    Returns
    -------
    int64[levels, rows]
        1 ... members; the last level holds all of them.

    Raises
    ------
    StrategyError
        Members or stride below one or not whole.

    Examples
    --------
    64 ranks 4 apart on nodes of 8: two per node.

    >>> from perfmodel.hwprofiles import load_hardware
    >>> members_per_domain(load_hardware("dgx-h100"), 64, 4)[:, 0].tolist()
    [2, 64]
    """
    ranks, steps = np.broadcast_arrays(_whole(members, "members"), _whole(stride, "stride"))
    ranks, steps = ranks.ravel(), steps.ravel()
    counts = np.empty((len(hardware.system.network), ranks.size), dtype=np.int64)
    domain = 1
    for level, network in enumerate(hardware.system.network):
        domain *= network.size
        counts[level] = np.clip(domain // steps, 1, ranks) if domain else ranks
    counts[-1] = ranks
    return counts


def outermost_level(hardware: Hardware, members: ArrayLike, stride: ArrayLike) -> NDArray[np.int64]:
    """Return the outermost network level that groups cross; -1 for a single member.

    Raises
    ------
    StrategyError
        Members or stride below one or not whole.
    """
    counts = members_per_domain(hardware, members, stride)
    return np.where(counts[-1] > 1, np.argmax(counts == counts[-1], axis=0), -1)


def overlap_compute_taxes(
    rows: Sequence[Hardware], members: ArrayLike, stride: ArrayLike
) -> NDArray[np.float64]:
    """Return the fraction of compute throughput that a running collective takes.

    Its kernels occupy compute units and memory bandwidth; more of them while
    device links are driven than for adapters alone.

    Parameters
    ----------
    rows : sequence of Hardware
        With the same sizes of network levels, adapters behind the same.
    members, stride : array of int
        As in `collective_times`.

    Returns
    -------
    float64[hardware, rows]
        0 ... 1; 0 where ``members`` is 1.

    Raises
    ------
    StrategyError
        Members or stride below one or not whole.
    HardwareError
        The profile lacks ``overlap_compute_tax`` or ``overlap_compute_tax_scale_out``.
    """
    inside = members_per_domain(rows[0], members, stride)[0]
    crossed = outermost_level(rows[0], members, stride)
    only_adapters = adapter_levels(rows[0])[crossed] & (inside == 1)
    names = ("overlap_compute_tax", "overlap_compute_tax_scale_out")
    taxes = np.array([[it.calibrated("network", name) for name in names] for it in rows])
    up, out = taxes[:, :1], taxes[:, 1:]
    return np.where(crossed < 0, 0.0, np.where(only_adapters, out, up))


def adapter_levels(hardware: Hardware) -> NDArray[np.bool_]:
    """Tell which network levels are reached through adapters."""
    levels = enumerate(hardware.system.network)
    return np.array([is_scale_out(network, level) for level, network in levels])


def serving_all_reduce_times(
    hardware: Hardware, size: ArrayLike, members: ArrayLike, stride: ArrayLike = 1
) -> NDArray[np.float64]:
    """Return times of all-reduces as serving engines run them.

    Engines launch kernels of their own for small buffers (one shot, two shot) and call the
    library for others; the fastest counts.

    Parameters
    ----------
    hardware, size, members, stride
        As in `collective_choices`.

    Returns
    -------
    float64[rows]
        [s].

    Raises
    ------
    StrategyError, HardwareError
        As `collective_choices` does.
    """
    shots = [
        collective_times(hardware, "all_reduce", size, members, stride, algorithm)
        for algorithm in ("auto", "one_shot", "two_shot")
    ]
    return np.minimum.reduce(shots)


def _codes(values: Any, names: Sequence[str], what: str, auto: bool = False) -> NDArray[np.int64]:
    """Turn names or codes into codes; -1 for "auto" where that is allowed."""
    array = np.atleast_1d(np.asarray(values))
    lowest = -1 if auto else 0
    if array.dtype.kind in "US":
        lookup = {name: code for code, name in enumerate(names)}
        if auto:
            lookup["auto"] = -1
        unknown = sorted(set(array.ravel().tolist()) - set(lookup))
        if unknown:
            hint = did_you_mean(str(unknown[0]), lookup)
            raise StrategyError(f"unknown {what} '{unknown[0]}'{hint}")
        return np.vectorize(lookup.__getitem__, otypes=[np.int64])(array)
    if array.dtype.kind not in "iu" or np.any((array < lowest) | (array >= len(names))):
        raise StrategyError(
            f"{what} code {array.flat[0] if array.size == 1 else array}; codes are whole "
            f"numbers 0 to {len(names) - 1}, names are {', '.join(names)}"
        )
    return array.astype(np.int64)


def _check_algorithms(kinds: NDArray[np.int64], algorithms: NDArray[np.int64]) -> None:
    """Raise StrategyError where an algorithm does not perform the collective."""
    for kind, code in {
        (int(kind), int(code)) for kind, code in zip(kinds, algorithms, strict=True) if code >= 0
    }:
        collective, algorithm = COLLECTIVES[kind], ALGORITHMS[code]
        if algorithm not in ALGORITHMS_OF[collective]:
            raise StrategyError(
                f"no {algorithm} algorithm for {collective}; it has "
                f"{', '.join(ALGORITHMS_OF[collective])}"
            )


def _whole(values: ArrayLike, name: str) -> NDArray[np.int64]:
    """Return values as int64, at least one each."""
    array = np.atleast_1d(np.asarray(values))
    if array.dtype.kind not in "iuf":
        raise StrategyError(f"{name} of a group must be whole numbers >= 1, not {values!r}")
    bad = ~(np.isfinite(array) & (array >= 1) & (array == np.floor(array)))
    if np.any(bad):
        raise StrategyError(f"{name} of a group is {array[bad].flat[0]}; a whole number >= 1")
    return array.astype(np.int64)
