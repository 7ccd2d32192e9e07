"""What a search may choose of a model on a mesh, within the routes of its routers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from math import inf

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.hwprofiles.mesh import MeshHardware
from perfmodel.kernels.wafer.columns import CACHE_LAYOUTS, PHASES, PREFILL
from perfmodel.kernels.wafer.products import PRODUCTS
from perfmodel.kernels.wafer.reduce import ALGORITHMS

SHAPES = ("square", "rectangle")

# Routes (colours) that a router holds at once, fixed ones and those for each core of a row. He et
# al. (OSDI 2025, section 4) give the orders: a fixed number for Cannon, MeshGEMM, chains and rings,
# K for K-trees, the length of the row for SUMMA and all-gathers. The numbers are our count:
# neighbours that pass on what they receive need two routes a direction, a copy to all one.
SUM_ROUTES: dict[str, tuple[int, int]] = {
    "chain": (3, 0),
    "ring": (4, 0),
    "star": (1, 1),
    "one_level": (3, 0),
    "two_level": (5, 0),
    "three_level": (7, 0),
    "four_level": (9, 0),
}
PRODUCT_ROUTES: dict[str, tuple[int, int]] = {
    "mesh_gemm": (8, 0),
    "cannon": (6, 0),
    "summa": (0, 2),
    "all_gather": (0, 2),
    "stationary_weights": (4, 0),
    "stationary_inputs": (4, 0),
}
"""``distance_blind`` is no mapping that anyone would choose; it is left out of every search."""


@dataclass(frozen=True)
class Choices:
    """What is chosen beside the grid and the regions; arrays of shape (choices,).

    Attributes
    ----------
    collective, product, cache_layout : array of int
        As of `perfmodel.kernels.wafer.columns.MeshMappings`.
    longest : array
        Longest side of a grid whose routes a router holds; 0 where none does.
    """

    collective: Integers
    product: Integers
    cache_layout: Integers
    longest: Floats

    def __len__(self) -> int:
        return len(self.collective)


def choices(
    hardware: MeshHardware,
    phase: int,
    *,
    collective: tuple[str, ...] = (),
    product: tuple[str, ...] = (),
    cache_layout: tuple[str, ...] = (),
) -> Choices:
    """Multiply out algorithms and layouts that a mesh has the routes for.

    Parameters
    ----------
    hardware : MeshHardware
    phase : int
        Decode multiplies no matrices, so that its products are not chosen.
    collective, product, cache_layout : tuple of str
        Those to choose from; empty for all.

    Raises
    ------
    StrategyError
        An unknown name, or one that no search may take.
    """
    sums = _named("collective", collective, SUM_ROUTES)
    multiplied = _named("product", product, PRODUCT_ROUTES)
    layouts = _named("cache_layout", cache_layout, dict.fromkeys(CACHE_LAYOUTS))
    if phase != PREFILL:
        multiplied = multiplied[:1]
    rows = list(itertools.product(layouts, multiplied, sums))
    longest = [
        longest_side(hardware.routes, algorithm, how if phase == PREFILL else None)
        for _, how, algorithm in rows
    ]
    if not any(longest):
        raise StrategyError(
            f"collective, product: {hardware.name} has {hardware.routes} routes a router "
            "('mesh.routes'), too few for any of these"
        )
    return Choices(
        collective=np.array([ALGORITHMS.index(one) for _, _, one in rows], np.int64),
        product=np.array([PRODUCTS.index(one) for _, one, _ in rows], np.int64),
        cache_layout=np.array([CACHE_LAYOUTS.index(one) for one, _, _ in rows], np.int64),
        longest=np.array(longest, float),
    )


def longest_side(routes: int, collective: str, product: str | None = None) -> float:
    """Return how long a row of cores may be, so that its routes are enough; infinite for any.

    Parameters
    ----------
    routes : int
        That a router holds; 0 where packets carry their address.
    collective : str
    product : str, optional
    """
    if not routes:
        return inf
    fixed, each = SUM_ROUTES[collective]
    if product is not None:
        fixed += PRODUCT_ROUTES[product][0]
        each += PRODUCT_ROUTES[product][1]
    left = routes - fixed
    if left < 0:
        return 0.0
    return float(left // each) if each else inf


def sides(hardware: MeshHardware, shape: str, given: list[int] | None) -> list[int]:
    """Return sides of grids to choose from, ascending: those given, or all that the mesh has.

    Raises
    ------
    StrategyError
        An unknown shape, or a side that the mesh does not have.
    """
    if shape not in SHAPES:
        raise StrategyError(f"shape: unknown '{shape}'{did_you_mean(shape, SHAPES)}")
    most = max(hardware.rows, hardware.columns)
    if shape == "square":
        most = min(hardware.rows, hardware.columns)
    if given is None:
        return list(range(1, most + 1))
    for side in given:
        if not isinstance(side, int) or not 0 < side <= most:
            raise StrategyError(
                f"grid: sides of 1 to {most} cores fit {hardware.name}, not {side!r}"
            )
    if not given:
        raise StrategyError("grid: the list of sides is empty")
    return sorted(set(given))


def phase_code(phase: str) -> int:
    """Return the place of a phase in `PHASES`.

    Raises
    ------
    StrategyError
    """
    if phase not in PHASES:
        raise StrategyError(f"phase: unknown '{phase}'{did_you_mean(phase, PHASES)}")
    return PHASES.index(phase)


def _named(key: str, given: tuple[str, ...], known: dict[str, object] | dict) -> list[str]:
    for name in given:
        if name not in known:
            raise StrategyError(f"{key}: a search takes no '{name}'{did_you_mean(name, known)}")
    return list(dict.fromkeys(given)) or list(known)
