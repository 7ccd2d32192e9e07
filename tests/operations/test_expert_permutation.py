"""Tokens in the order of their experts: kernels, gathers, products with masks."""

import numpy as np
import pytest

from perfmodel.operations.operations import Communication, Gemm, Stream
from perfmodel.software.framework import load_framework
from tests.operations.counting import number
from tests.operations.test_experts_block import layer, model_of


def moved(operations, phase):
    """Bytes of what puts tokens in order, beside the sorting of the choices."""
    names = ("mlp.repeat", "mlp.permute", "mlp.unpermute", "mlp.weigh")
    return sum(
        number(x.bytes_read + x.bytes_written)
        for x in operations
        if isinstance(x, Stream) and x.name in names and x.phase == phase
    )


def test_gathers_alone_move_what_is_routed_once_more_each_way():
    """Repeated rows are written and read on top, and so are results that are still apart."""
    model = model_of(2)
    found = {
        alone: layer(model, load_framework("megatron", gathers_alone=alone), expert_parallel=1)
        for alone in (False, True)
    }
    routed = 4096 * 2 * 1024 * 2.0  # B
    for phase in ("forward", "backward_input"):
        fused, apart = moved(found[False], phase), moved(found[True], phase)
        assert apart - fused >= 4 * routed
    assert not [x for x in found[False] if x.name == "mlp.order"]
    assert [x for x in found[True] if x.name == "mlp.order"]


def masks(operations):
    return [x for x in operations if isinstance(x, Gemm) and "permute" in x.name]


@pytest.mark.parametrize("capacity", [1.0, 1.25])
def test_masks_cost_the_square_of_a_sequence(capacity):
    """Two products forwards, three backwards: of S x (S k c) x h each, in every sequence."""
    model = model_of(2)
    framework = load_framework("maxtext", expert_dispatch="einsum", capacity_factor=capacity)
    found = masks(layer(model, framework, micro_batch_size=3))
    flops = [number(2 * x.m * x.n * x.k * x.batch) for x in found]
    assert np.allclose(flops, 3 * 2 * 4096 * (4096 * 2 * capacity) * 1024)
    assert sorted(x.phase for x in found) == ["backward_input"] * 3 + ["forward"] * 2


def test_without_a_capacity_every_expert_takes_every_token():
    model = model_of(2)
    found = layer(model, load_framework("maxtext", expert_dispatch="einsum"), micro_batch_size=1)
    assert not masks(found)
    up = next(x for x in found if x.name == "mlp.experts_up")
    assert (number(up.m), number(up.batch)) == (4096, 16)


def test_places_travel_and_nothing_is_sorted_or_counted():
    model = model_of(2)
    framework = load_framework("maxtext", expert_dispatch="einsum", capacity_factor=1.5)
    found = [x for x in layer(model, framework, expert_parallel=4) if np.any(x.count)]
    names = {x.name for x in found}
    assert not names & {"mlp.sort", "mlp.unsort", "mlp.order", "mlp.dispatch.counts"}
    exchanges = [x for x in found if isinstance(x, Communication) and x.axis == "expert"]
    assert {x.name for x in exchanges} == {"mlp.dispatch.all_to_all", "mlp.combine.all_to_all"}
    assert {number(x.size) for x in exchanges} == {4096 * 2 * 1.5 * 1024 * 2.0}
