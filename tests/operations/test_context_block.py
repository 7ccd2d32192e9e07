"""Context ranks: no pair of tokens is lost or met twice, and what travels is what is needed."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.model.attention import AttentionSpec
from perfmodel.operations.context_block import remote_work
from perfmodel.operations.operations import Attention, Stream
from perfmodel.software.framework import load_framework
from perfmodel.training.flops import attended_keys
from tests.operations.counting import communications, matrix_flops, number, operations_of
from tests.operations.layers import LAYERS, model_of

LENGTH = 8192


@pytest.mark.parametrize("chunk", [512, 1024, 2048, 4096, 8192, 65536])
@pytest.mark.parametrize("degree", [1, 2, 4, 8])
def test_ranks_share_the_pairs_of_chunks(chunk, degree):
    spec = AttentionSpec("chunked", 16, 8, 128, window=chunk)
    length, ranks = np.array([float(LENGTH)]), np.array([float(degree)])
    local = length / ranks
    steps, queries, keys = remote_work(spec, length, local, ranks)
    reach = min(chunk, LENGTH)
    inside = min(reach, local[0])
    own = local[0] * inside / 2
    all_pairs = LENGTH * float(attended_keys(spec, LENGTH, causal=True))
    assert degree * (own + (steps * queries * keys)[0]) == pytest.approx(all_pairs)


def test_ranks_share_the_full_square_of_what_is_not_causal():
    spec = AttentionSpec("full", 16, 8, 128, causal=False)
    length, ranks = np.array([8192.0]), np.array([4.0])
    steps, queries, keys = remote_work(spec, length, length / ranks, ranks)
    assert (steps * queries * keys)[0] + 2048**2 == 8192**2 / 4


@pytest.mark.parametrize("kind", ["ring", "all_gather", "all_to_all"])
@pytest.mark.parametrize("length", [4096, 6144, 8192])
def test_chunks_cost_the_same_on_every_degree(kind, length):
    """6,144 tokens in chunks of 1,024 on 4 ranks: one and a half chunks each."""

    def done(degree):
        items = operations_of(
            model_of("chunked"),
            "layer0",
            sequence_length=length,
            context_parallel=degree,
            context_parallel_kind=kind,
        )
        calls = [x for x in items if isinstance(x, Attention) and not x.backward]
        return degree * sum(map(matrix_flops, calls))

    model = model_of("chunked")
    spec = model.layers[0].attention
    keys = float(attended_keys(spec, length, causal=True))
    assert done(1) == pytest.approx(2.0 * length * keys * 16 * 256)
    if kind == "all_to_all" or length != 6144:
        assert done(4) == pytest.approx(done(1))
    else:  # whole chunks and a half; the other half of that chunk lies on the next rank
        assert 0.8 * done(1) < done(4) <= done(1)


def test_chunks_need_no_keys_of_other_ranks_unless_they_are_longer():
    for name, hops in (("chunked", 0), ("sliding", 1)):
        items = operations_of(model_of(name), "layer0", sequence_length=8192, context_parallel=4)
        ring = [x for x in communications(items) if x.name == "attention.ring"]
        assert sum(number(x.count) for x in ring if x.phase == "forward") == hops


def test_every_layer_with_context_ranks_speaks_to_them_or_has_nothing_to_say():
    silent = {"mlp alone", "latent experts", "chunked"}
    for name in LAYERS:
        items = operations_of(model_of(name), "layer0", context_parallel=2)
        assert bool(communications(items, "context")) == (name not in silent), name


def pieces(framework="megatron", **fields):
    """Bytes of what adds up pieces of attention, by phase."""
    model = model_of("attention alone")
    items = operations_of(model, "layer0", load_framework(framework), **fields)
    total = {"forward": 0.0, "backward_input": 0.0}
    for it in items:
        if isinstance(it, Stream) and it.name.endswith("_pieces"):
            moved = number(it.bytes_read) + number(it.bytes_written)
            total[it.phase] += moved * number(it.count)
    return total


def test_a_ring_adds_up_its_pieces():
    # 2,048 tokens on 4 ranks, 16 heads of 128, 8 of keys: three pieces are added to the own one.
    outputs, moved = 512 * 16 * 128, 512 * 8 * 256
    assert pieces(context_parallel=4) == {
        "forward": 3 * 6 * outputs,
        "backward_input": 4 * 6 * (outputs + moved),
    }
    # PyTorch casts four pieces to fp32 and merges three of them, operator by operator.
    assert pieces("torchtitan", context_parallel=4) == {
        "forward": 4 * 6 * outputs + 3 * 32 * outputs,
        "backward_input": 4 * 10 * (outputs + moved),
    }


@pytest.mark.parametrize(
    ("framework", "fields", "merged"),
    [
        ("megatron", {"context_parallel": 1}, False),
        ("torchtitan", {"context_parallel": 1}, False),
        ("megatron", {"context_parallel": 4, "context_parallel_kind": "all_gather"}, False),
        ("torchtitan", {"context_parallel": 4, "context_parallel_kind": "all_gather"}, True),
        ("torchtitan", {"context_parallel": 4, "context_parallel_kind": "all_to_all"}, False),
    ],
)
def test_whole_rows_of_keys_need_no_sum(framework, fields, merged):
    assert (sum(pieces(framework, **fields).values()) > 0) == merged


def test_gradients_of_gathered_keys_come_home_hop_by_hop_in_fp32():
    fields = {"context_parallel": 4, "context_parallel_kind": "all_gather"}
    model, framework = model_of("attention alone"), load_framework("torchtitan")
    items = operations_of(model, "layer0", framework, **fields)
    (ring,) = [it for it in items if it.name == "attention.ring_gradients" and number(it.count)]
    assert (number(ring.count), number(ring.size)) == (4.0, 512 * 8 * 256 * 4)
    assert number(ring.tail) == 0.25
