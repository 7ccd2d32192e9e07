"""Random networks of flows."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st


def compressed(routes: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, routes)]).astype(np.int64)
    return offsets, np.array([link for route in routes for link in route], dtype=np.int64)


@st.composite
def networks(draw):
    """Random routes without a link twice, capacities, caps and weights."""
    links = draw(st.integers(1, 8))
    route = st.lists(st.integers(0, links - 1), min_size=1, max_size=links, unique=True)
    routes = draw(st.lists(route, min_size=1, max_size=12))
    number = st.floats(0.1, 100.0)
    capacity = draw(st.lists(number, min_size=links, max_size=links))
    some = {"min_size": len(routes), "max_size": len(routes)}
    cap = draw(st.lists(st.one_of(number, st.just(math.inf)), **some))
    weight = draw(st.lists(st.floats(0.25, 4.0), **some))
    return routes, np.array(capacity), np.array(cap), np.array(weight)


def use_of(routes, capacity, rate):
    """Rate over every link."""
    load = np.zeros(len(capacity))
    for route, value in zip(routes, rate, strict=True):
        load[route] += value
    return load
