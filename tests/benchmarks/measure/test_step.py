"""Which products a training step holds."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.measure.scripts import arguments_of


def test_a_linear_layer_is_three_products_of_equal_work(script: Any) -> None:
    step = script("step")
    found = step.shapes(arguments_of(step, "--tokens", "2048", "--layers", "7"))
    assert len(found) == 15  # sizes of the layer, not its number
    for first in range(0, len(found), 3):
        three = found[first : first + 3]
        assert len({shape["m"] * shape["n"] * shape["k"] for shape in three}) == 1
        assert [shape["kernel"] for shape in three] == ["", "layout=NN", "layout=NT"]
        assert three[2]["k"] == 2048  # the gradient of the weights sums over tokens
