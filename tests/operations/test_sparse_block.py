"""Sparse attention: what is scored and chosen, latent space, and keys over context ranks."""

from __future__ import annotations

import pytest

from perfmodel.compute.sparse_attention import sparse_keys
from perfmodel.operations.operations import Attention, Indexer, SparseAttention
from perfmodel.training.flops import attended_keys, scored_keys
from tests.operations.counting import communications, number, operations_of
from tests.operations.layers import LAYERS, model_of

SPARSE = (
    "sparse latent",
    "shared choice",
    "block sparse",
    "window of one",
    "heavily compressed",
    "compressed",
)


def layer_of(name, **fields):
    return operations_of(model_of(name), "layer0", **fields)


def of_kind(operations, kind, phase="forward"):
    return [x for x in operations if isinstance(x, kind) and x.phase == phase]


@pytest.mark.parametrize("name", LAYERS)
def test_sparse_layers_run_sparse_kernels_and_others_none(name):
    operations = layer_of(name)
    assert len(of_kind(operations, SparseAttention)) == (name in SPARSE)
    assert bool(of_kind(operations, Attention)) == (
        bool(LAYERS[name].attentions) and name not in SPARSE
    )
    indexed = name in ("sparse latent", "block sparse", "compressed")
    assert len(of_kind(operations, Indexer)) == indexed
    assert len(of_kind(operations, Indexer, "backward_input")) == indexed


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("length", [512, 4096, 65536])
def test_kernels_see_the_keys_that_model_flops_count(name, length):
    """Counting keys one by one, up to the diagonal, which model FLOP count half."""
    (call,) = of_kind(layer_of(name, sequence_length=length), SparseAttention)
    keys = sparse_keys(
        number(call.query_length),
        number(call.key_length),
        selected=call.selected,
        window=call.window,
        compression=call.compression,
        block=call.block,
    )
    spec = LAYERS[name].attention
    mean = float(attended_keys(spec, length, causal=True))
    # Of a chosen block the last one is seen up to the token itself: half a block less.
    assert float(keys.pairs) / length == pytest.approx(mean, rel=0.02, abs=call.block / 2 + 1)


def test_indexers_score_all_keys_or_all_entries():
    (call,) = of_kind(layer_of("sparse latent", sequence_length=4096), Indexer)
    assert (call.heads, call.head_dim, call.top_k, call.compression) == (32, 128, 1024, 1)
    assert float(scored_keys(LAYERS["sparse latent"].attention, 4096, causal=True)) == 2048
    (call,) = of_kind(layer_of("compressed", sequence_length=4096), Indexer)
    assert (call.top_k, call.compression) == (256, 4)
    assert float(scored_keys(LAYERS["compressed"].attention, 4096, causal=True)) == 512
    assert float(scored_keys(LAYERS["shared choice"].attention, 4096, causal=True)) == 0


def test_latent_attention_stays_in_latent_space():
    operations = layer_of("sparse latent", tensor_parallel=4)
    (call,) = of_kind(operations, SparseAttention)
    assert (call.head_dim_qk, call.head_dim_v, call.shared_key_value) == (576, 512, True)
    assert (number(call.heads), number(call.key_value_heads)) == (4, 1)
    names = {x.name for x in operations}
    assert {"attention.query_latent", "attention.value_up"} <= names
    assert "attention.key_value_up" not in names


def test_every_tensor_rank_scores_for_all_tokens():
    for tensor in (1, 4):
        fields = {"tensor_parallel": tensor, "sequence_parallel": tensor > 1}
        (call,) = of_kind(layer_of("sparse latent", **fields), Indexer)
        assert (number(call.query_length), call.heads) == (2048, 32)


@pytest.mark.parametrize("kind", ["ring", "all_gather", "all_to_all"])
def test_context_ranks_gather_keys_and_index_keys(kind):
    fields = {"context_parallel": 4, "context_parallel_kind": kind, "sequence_length": 8192}
    operations = layer_of("sparse latent", **fields)
    sent = {x.name: x for x in communications(operations, "context") if x.phase == "forward"}
    assert set(sent) == {"attention.gather_keys", "attention.gather_index"}
    assert number(sent["attention.gather_keys"].size) == 8192 * 576 * 2
    assert number(sent["attention.gather_index"].size) == 8192 * 128 * 2
    operations = layer_of("compressed", **fields)
    sent = {x.name: x for x in communications(operations, "context") if x.phase == "forward"}
    # Entries of four tokens each, and the window's last tokens from the rank before.
    assert number(sent["attention.gather_keys"].size) == 8192 / 4 * 512 * 2
    assert number(sent["attention.window"].size) == 128 * 512 * 2
    assert number(sent["attention.window"].count) == 1


@pytest.mark.parametrize("name", ["heavily compressed", "sparse latent"])
def test_context_ranks_share_the_keys_of_all_queries(name):
    """Exactly what grows along the sequence; of chosen keys no less than their share."""
    length = 65536

    def pairs(degree):
        fields = {"context_parallel": degree, "sequence_length": length}
        (call,) = of_kind(layer_of(name, **fields), SparseAttention)
        found = sparse_keys(
            number(call.query_length),
            number(call.key_length),
            selected=call.selected,
            window=call.window,
            compression=call.compression,
        )
        return degree * float(found.pairs)

    assert pairs(1) * (1 - 1e-2) <= pairs(8) <= pairs(1) * 1.02
