"""Which collectives are measured."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.measure.scripts import arguments_of


def test_collective_sizes_divide_among_the_ranks(script: Any) -> None:
    module = script("collective")
    found = module.shapes(arguments_of(module), 6, 1)
    assert all(shape["bytes"] % (2 * 6) == 0 for shape in found)
    assert max(shape["bytes"] for shape in found) <= 2**29
