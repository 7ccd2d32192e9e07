"""Stages and chunks: every part of a model is somewhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.model.build import dense_model
from perfmodel.model.layers import layer_parameters
from perfmodel.model.presets import load_model
from perfmodel.operations.parts import model_parts
from perfmodel.training.layout import chunk_sizes, chunks_by_cost, stage_layout
from perfmodel.training.recomputed import ALL
from perfmodel.training.schedule import stage_compositions, stage_table


@given(st.integers(1, 200), st.integers(1, 200), st.booleans())
def test_chunks_hold_every_layer(layers, chunks, heavy_end):
    sizes = chunk_sizes(layers, chunks, heavy_end=heavy_end)
    assert len(sizes) == chunks
    assert sum(sizes) == layers
    assert min(sizes) >= 0
    if heavy_end:
        assert sizes == sorted(sizes, reverse=True)
        return
    if layers % chunks == 0:
        assert len(set(sizes)) == 1
    if chunks <= layers:
        # With the edges counted as a layer each, no two chunks differ by more than one.
        loads = list(sizes)
        loads[0] += 1
        loads[-1] += 1
        assert layers % chunks == 0 or max(loads) - min(loads) <= 1


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1000, 131072]))
def test_chunks_by_cost_hold_every_layer_and_equal_shares(layers, chunks, vocab_size):
    model = dense_model(
        "m", layers=layers, hidden_size=256, heads=4, intermediate_size=1024, vocab_size=vocab_size
    )
    sizes = chunks_by_cost(model, chunks)
    assert len(sizes) == chunks
    assert sum(sizes) == layers
    layer = layer_parameters(model.layers[0], 256).total
    share = (layers * layer + vocab_size * 256) / chunks
    # A chunk stops with the layer that exceeds what the chunks so far should have.
    assert all(size * layer <= share + 2 * layer for size in sizes[:-1])


def test_nanotron_leaves_the_last_stage_less_where_the_vocabulary_is_large():
    """Its Ultra-Scale Playbook's 1B: 16 layers of 67 million, an output of 268 million."""
    model = dense_model(
        "1B", layers=16, hidden_size=2048, heads=32, intermediate_size=8192, vocab_size=131072
    )
    assert chunks_by_cost(model, 2) == [10, 6]
    assert stage_layout(model, 2, 1, "even").layers == (8, 8)
    even, by_cost = (stage_compositions(model, 2, 1, split) for split in ("even", "by_cost"))
    assert by_cost.sum(axis=0).tolist() == even.sum(axis=0).tolist()


def test_llama_3_405b():
    # Llama 3 (arXiv:2407.21783, section 3.3.2): 126 layers on 16 stages; the first and the
    # last stage have one layer less.
    sizes = chunk_sizes(126, 16)
    assert sizes == [7, *[8] * 14, 7]
    sizes = chunk_sizes(126, 16 * 8)
    assert sizes == [0, *[1] * 126, 0]


def test_bloom_176b():
    # BLOOM (arXiv:2211.05100, section 3.3): 70 layers, and two embeddings, on 12 stages.
    assert chunk_sizes(70, 12) == [5, *[6] * 10, 5]


def test_a_heavy_end_takes_what_is_left():
    # Megatron-Bridge deepseek_v3.py pipeline layouts: 61 layers and MTP on 16 stages.
    assert chunk_sizes(61, 16, heavy_end=True) == [*[4] * 15, 1]
    counts = stage_compositions(load_model("deepseek-v3", mtp="stated"), 16, 1)
    layers = [part.kind == "layer" for part in model_parts(load_model("deepseek-v3", mtp="stated"))]
    # The last stage has one layer of the model and one of the MTP module.
    assert counts[:, layers].sum(axis=1).tolist() == [*[4.0] * 15, 2.0]


def test_what_is_left_over_goes_to_the_middle():
    # 63 places over 16 chunks: 15 have 4, one has 3; the first and the last lose one.
    assert sorted(chunk_sizes(61, 16)) == [2, 3, *[4] * 14]
    assert chunk_sizes(10, 4) == [2, 3, 3, 2]
    assert chunk_sizes(12, 4) == [3, 3, 3, 3]


@pytest.mark.parametrize("name", ["deepseek-v3", "gemma-3-27b", "llama-3.1-405b", "gpt-oss-20b"])
@pytest.mark.parametrize(("pipeline", "virtual"), [(1, 1), (2, 1), (4, 2), (8, 1), (8, 3)])
def test_stages_hold_every_part_of_the_model(name, pipeline, virtual):
    model = load_model(name, mtp="stated")
    parts = model_parts(model)
    counts = stage_compositions(model, pipeline, virtual)
    assert counts.shape == (pipeline, len(parts))
    assert np.all(counts >= 0)
    for column, part in zip(counts.T, parts, strict=True):
        expected = {
            "layer": model.layers.count(part.layer) + model.mtp_layers.count(part.layer),
            "embedding": 1,
            "output": 1 + len(model.mtp_layers),
            "mtp": len(model.mtp_layers),
        }[part.kind]
        assert column.sum() == expected
    kinds = [part.kind for part in parts]
    assert counts[0, kinds.index("embedding")] == 1
    assert counts[-1, kinds.index("output")] >= 1
    if model.mtp_layers:
        assert counts[-1, kinds.index("mtp")] == len(model.mtp_layers)


def test_deepseek_v3_dense_layers_come_first():
    # 3 dense of 61 layers, arXiv:2412.19437, section 4.2
    model = load_model("deepseek-v3", mtp="stated")
    parts = model_parts(model)
    dense = [part.layer is not None and part.layer.mlp.kind == "dense" for part in parts].index(
        True
    )
    counts = stage_compositions(model, 16, 1)
    assert counts[0, dense] == 3
    assert counts[1:, dense].sum() == 0


def test_interleaved_chunks_go_round_the_stages():
    model = load_model("gemma-3-27b")  # 62 layers, every sixth attends to everything
    counts = stage_compositions(model, 2, 1)
    interleaved = stage_compositions(model, 2, 31)
    layers = [part.kind == "layer" for part in model_parts(model)]
    assert counts[:, layers].sum(axis=1).tolist() == [31, 31]
    assert interleaved[:, layers].sum(axis=1).tolist() == [31, 31]
    # Full layers are 5, 11, …, so all odd: chunks of one layer put all on the second stage.
    full = [
        part.layer is not None and part.layer.attention.window == 0 for part in model_parts(model)
    ]
    assert interleaved[0, full].sum() == 0
    assert interleaved[1, full].sum() == 10


@given(
    st.lists(
        st.sampled_from([(1, 1), (2, 1), (4, 1), (4, 4), (8, 2), (16, 1), (61, 1), (7, 3)]),
        min_size=1,
        unique=True,
    )
)
def test_a_table_repeats_no_composition_and_misses_none(pairs):
    model = load_model("deepseek-v3", mtp="stated")
    table = stage_table(model, [(*pair, "loop", "even", ALL) for pair in pairs])
    assert table.offset[0] == 0
    assert table.offset[-1] == len(table.counts) == len(table.stages) == len(table.first_stage)
    for i, (pipeline, virtual) in enumerate(pairs):
        rows = slice(table.offset[i], table.offset[i + 1])
        whole = stage_compositions(model, pipeline, virtual)
        assert table.stages[rows].sum() == pipeline
        assert len(np.unique(table.counts[rows], axis=0)) == len(table.counts[rows])
        np.testing.assert_array_equal(
            (table.counts[rows] * table.stages[rows, None]).sum(axis=0), whole.sum(axis=0)
        )
        for first, counts in zip(table.first_stage[rows], table.counts[rows], strict=True):
            matching = np.flatnonzero((whole == counts).all(axis=1))
            assert matching[0] == first
