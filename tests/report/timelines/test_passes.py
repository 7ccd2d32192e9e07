"""What passes consist of: the same in sum, however finely it is told."""

from __future__ import annotations

from collections import defaultdict

import pytest

from perfmodel.base.variables import TIME_COMPONENTS
from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, INPUT, WEIGHT
from perfmodel.report.timelines.passes import COMPONENT, DEPTHS, WORDS, pass_pieces
from perfmodel.software.framework import load_framework
from perfmodel.workloads.export.workload import model_chunks, order_of


@pytest.fixture(scope="module")
def blocks(small_moe, grid_of, h100):
    grid = grid_of(small_moe, tensor_parallel=2, data_parallel=4, expert_parallel=4,
                   recompute="selective")  # fmt: skip
    software = load_framework("megatron")
    (chunk,) = model_chunks(small_moe, grid, h100, software, order_of(grid), "even")
    return chunk


def sums(pieces):
    found = defaultdict(float)
    for piece in pieces:
        found[piece.component, "shown"] += piece.duration
        found[piece.component, "hidden"] += piece.hidden
    return found


def test_every_component_has_a_word():
    assert set(WORDS) == set(TIME_COMPONENTS)


@pytest.mark.parametrize("kind", [FORWARD, BACKWARD, INPUT, WEIGHT])
def test_depths_agree(blocks, kind):
    coarse, *finer = (pass_pieces(blocks, kind, depth) for depth in DEPTHS)
    wanted = sums(coarse)
    assert len({piece.component for piece in coarse}) == len(coarse)
    for pieces in finer:
        assert len(pieces) > len(coarse)
        for key, value in sums(pieces).items():
            assert value == pytest.approx(wanted[key], rel=1e-12), key


def test_a_backward_pass_is_both_of_its_parts(blocks):
    whole = sums(pass_pieces(blocks, BACKWARD))
    parts = sums([*pass_pieces(blocks, INPUT), *pass_pieces(blocks, WEIGHT)])
    for key, value in whole.items():
        assert parts[key] == pytest.approx(value, rel=1e-12), key
    weights = {piece.component for piece in pass_pieces(blocks, WEIGHT)}
    assert weights <= {COMPONENT["backward_time"], COMPONENT["host_time"]}


def test_layers_go_forward_and_back_in_order(blocks):
    names = [piece.name for piece in pass_pieces(blocks, FORWARD, "layers")]
    first = [name for name in names if name.endswith(" forward")]
    assert first[0].startswith("embedding")
    assert first[1] == "layer 0 forward"
    assert first[-1].startswith("output")
    back = [piece.name for piece in pass_pieces(blocks, BACKWARD, "layers")]
    assert back[0].startswith("output")


def test_what_hides_begins_within_its_pass(blocks):
    for kind in (FORWARD, BACKWARD):
        pieces = pass_pieces(blocks, kind, "operations")
        time = sum(piece.duration for piece in pieces)
        assert all(0.0 <= piece.beside <= time for piece in pieces)
