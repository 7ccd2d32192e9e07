"""Collectives, their algorithms and protocols: names, and the numbers that stand for them.

The position in each tuple is the number that columns, stored datasets and kernels use.
Kernels import nothing of ours and say their numbers themselves; ``tests/base`` holds the
two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "point_to_point",
    "multicast",
    "gather",
    "scatter",
)
"""What is priced, numbered as in `perfmodel.kernels.collective.algorithms`."""

ALGORITHMS = (
    "ring",
    "bidirectional_ring",
    "direct",
    "halving_doubling",
    "recursive_doubling",
    "double_binary_tree",
    "hierarchical",
    "in_network",
    "one_shot",
    "two_shot",
    "rail_aligned",
    "in_network_tree",
    "aggregated_trees",
)
"""Numbered as in `perfmodel.kernels.collective.algorithms`."""

PROTOCOLS = ("low_latency", "low_latency_128", "simple")
"""NCCL's LL, LL128 and simple, numbered as in `perfmodel.kernels.collective.tuning`."""

_REDUCTIONS = ("ring", "bidirectional_ring", "direct", "halving_doubling", "recursive_doubling")
_COPIES = ("ring", "direct", "recursive_doubling", "double_binary_tree", "hierarchical")
ALGORITHMS_OF: Mapping[str, tuple[str, ...]] = {
    "all_reduce": (
        *_REDUCTIONS,
        *("double_binary_tree", "hierarchical", "in_network", "in_network_tree"),
        *("one_shot", "two_shot"),
    ),
    "all_gather": (*_REDUCTIONS, "hierarchical", "in_network", "aggregated_trees"),
    "reduce_scatter": (*_REDUCTIONS, "hierarchical", "in_network", "aggregated_trees"),
    "all_to_all": ("direct", "hierarchical", "rail_aligned"),
    "broadcast": (*_COPIES, "in_network"),
    "point_to_point": ("direct",),
    "multicast": (*_COPIES, "in_network"),
    "gather": ("direct", "recursive_doubling"),
    "scatter": ("direct", "recursive_doubling"),
}
"""Algorithms that the kernels can run, by collective."""

TRACED = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter_block",
    "barrier",
)
"""What execution traces hold, numbered as Chakra's ``CollectiveCommType``
(``et_def.proto`` of mlcommons/chakra)."""

SIMULATED = COLLECTIVES[:4]
"""What ASTRA-sim runs, numbered as in `perfmodel.kernels.workloads.astra.phase`."""

WORDS: Mapping[str, str] = {name: name.replace("_", "").upper() for name in SIMULATED}
"""Name -> word of the text workloads of AICB, SimAI and ASTRA-sim 1.0: ALLREDUCE, …"""

COLLECTIVE_OF_WORD: Mapping[str, str] = {word: name for name, word in WORDS.items()}

TWO_COLLECTIVES = "ALLREDUCEALLTOALL"
"""Word for both, one after the other; text workloads may say it, few simulators run it."""


def bus_factor(collective: str, members: ArrayLike) -> NDArray[np.float64]:
    """Return bus bandwidth over algorithm bandwidth, nccl-tests doc/PERFORMANCE.md.

    Parameters
    ----------
    collective : str
        One of `COLLECTIVES`.
    members : array_like of int

    Returns
    -------
    float64[rows]
        2 (n - 1) / n for all_reduce; (n - 1) / n for all_gather, reduce_scatter, all_to_all,
        gather and scatter; 1 for broadcast, multicast and point_to_point.
    """
    import numpy as np

    n = np.atleast_1d(np.asarray(members, np.float64))
    if collective in ("broadcast", "multicast", "point_to_point"):
        return np.ones(n.size)
    return (n - 1.0) / n * (2.0 if collective == "all_reduce" else 1.0)
