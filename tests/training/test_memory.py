"""Memory of parts and stages against parameter counts; what sharding and recomputation save."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.kernels.variables import MEMORY_COMPONENTS
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import LayerSpec, MlpSpec
from perfmodel.model.pieces import Piece
from perfmodel.model.presets import load_model, preset_names
from perfmodel.model.spec import ModelSpec, TowerSpec
from perfmodel.operations.parts import model_parts
from perfmodel.software.framework import load_framework
from perfmodel.training.activations import Scope, norms_kept
from perfmodel.training.memory import layer_kept, layer_weights, part_memory, shared_table
from perfmodel.training.schedule import stage_compositions
from tests.amount import cases
from tests.training.gpt import keys_of


def test_gpipe_keeps_the_logits_of_every_micro_batch(project, h100, small_dense):
    keys = keys_of(micro_batch_size=1, sequence_length=2048)
    parts = model_parts(small_dense)
    kept = [part_memory(small_dense, part, keys, load_framework("megatron")) for part in parts]
    logits = float(np.asarray(kept[[part.kind for part in parts].index("output")].logits)[0])
    # Four bytes of softmax a row of the padded vocabulary, and two hidden states of 2 bytes a
    # token.
    vocabulary = -(-small_dense.vocab_size // 128) * 128
    assert logits == 2048 * vocabulary * 4 + 2048 * small_dense.hidden_size * 2 * 2
    first, second = (
        project(
            small_dense,
            h100,
            pipeline_parallel=4,
            micro_batches=batches,
            pipeline_schedule="gpipe",
            sequence_length=2048,
        )["memory_activations"]
        for batches in (8, 9)
    )
    assert second - first > logits


def stored_parameters(model, pipeline=1, virtual=1, **fields):
    """Parameters on every device of a tensor-parallel plane, summed over stages."""
    keys = keys_of(**fields)
    framework = load_framework("megatron", pads_vocabulary_to=1)
    parts = model_parts(model)
    kept = [part_memory(model, part, keys, framework) for part in parts]
    weights = np.array([float(np.asarray(item.weights).reshape(-1)[0]) for item in kept])
    experts = np.array([float(np.asarray(item.experts).reshape(-1)[0]) for item in kept])
    counts = stage_compositions(model, pipeline, virtual)
    output = [part.kind for part in parts].index("output")
    counts[:, output] = np.minimum(counts[:, output], 1)  # several heads share one matrix
    return float((counts @ weights).sum()), float((counts @ experts).sum())


UNTIED = ["llama-3.1-8b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-20b"]


@pytest.mark.parametrize("name", UNTIED)
@pytest.mark.parametrize(("pipeline", "virtual"), [(1, 1), (4, 1), (2, 3)])
def test_stages_hold_the_whole_model(name, pipeline, virtual):
    model = load_model(name, mtp="stated")
    weights, experts = stored_parameters(model, pipeline, virtual)
    assert weights + experts == model.parameter_count()


@pytest.mark.parametrize("name", preset_names())
def test_one_device_holds_every_preset_once(name):
    model = load_model(name)
    weights, experts = stored_parameters(model)
    keys, framework = keys_of(), load_framework("megatron", pads_vocabulary_to=1)
    shared = float(shared_table(model, keys, framework)[0])
    assert weights + experts - shared == model.parameter_count()


def test_edges_of_a_model_are_held_once():
    """Narrow token table, tables and projections beside it, biases, streams summed at the end."""
    layer = LayerSpec(
        (AttentionSpec("full", 4, 2, 16),),
        (MlpSpec("dense", 128, bias=True),),
        streams=4,
        extra=(Piece("per_layer_gate", "matrix", 64, 8),),
    )
    extra = (
        Piece("per_layer_table", "table", 1000, 16),
        Piece("per_layer_projection", "matrix", 64, 16),
    )
    model = ModelSpec(
        "edges",
        "any",
        64,
        1000,
        (layer, layer),
        lm_head_bias=True,
        embedding_width=32,
        extra=extra,
    )
    for pipeline in (1, 2):
        weights, experts = stored_parameters(model, pipeline)
        assert (weights, experts) == (model.parameter_count(), 0.0)
    tied = replace(model, tied_embeddings=True)
    weights, _ = stored_parameters(tied, 2)
    assert weights == tied.parameter_count() + 1000 * 32


@pytest.mark.parametrize("degree", [2, 4])
def test_tensor_ranks_split_pieces_as_they_say(degree):
    """Columns and rows once in all, what is whole on every rank."""
    for name in ("deepseek-v3", "gpt-oss-20b", "qwen3-30b-a3b", "bloom-7b1"):
        model = load_model(name)
        for layer in model.layer_kinds()[0]:
            pieces = [
                piece for place, piece in layer.pieces(model.hidden_size) if place != "experts"
            ]
            split = sum(piece.sharded for piece in pieces)
            whole = sum(piece.parameters for piece in pieces) - split
            one = layer_weights(model.hidden_size, layer, keys_of())[0][0]
            found = layer_weights(model.hidden_size, layer, keys_of(tensor_parallel=degree))[0][0]
            assert one == split + whole
            assert found * degree == pytest.approx(split + whole * degree, rel=1e-12)


@pytest.mark.parametrize("name", ["bloom-176b", "gpt3-175b", "gpt2-xl", "opt-66b"])
def test_a_tied_matrix_is_kept_by_the_first_and_the_last_stage(name):
    model = load_model(name)
    assert model.tied_embeddings
    weights, _ = stored_parameters(model, 2)
    table = model.vocab_size * model.hidden_size
    assert weights == model.parameter_count() + table


@pytest.mark.parametrize("name", ["llama-3.1-8b", "bloom-176b", "gemma-3-27b"])
def test_projected_parameters_are_the_models(name, project, h100):
    """One device holds everything once, tied tables included: the fp32 master, cast to 2 bytes."""
    model = load_model(name)
    found = project(model, h100, load_framework("fsdp"))
    assert found["memory_parameters"] == pytest.approx(6.0 * model.parameter_count(), rel=1e-12)
    assert found["memory_optimizer"] == pytest.approx(8.0 * model.parameter_count(), rel=1e-12)


@pytest.mark.parametrize("name", UNTIED)
def test_tensor_parallel_shards_add_up(name):
    """Together, t devices hold the model once, and what is not sharded t times."""
    model = load_model(name)
    whole, _ = stored_parameters(model)
    for tensor in (2, 4):
        weights, _ = stored_parameters(model, tensor_parallel=tensor)
        repeated = (tensor * weights - whole) / (tensor - 1)
        assert 0 < repeated < 0.07 * whole  # norms, routers, latent down-projections
        assert weights >= whole / tensor


@pytest.mark.parametrize(("expert", "inner"), [(2, 1), (8, 1), (4, 2), (1, 4)])
def test_expert_shards_add_up(expert, inner):
    model = load_model("mixtral-8x7b")
    _, whole = stored_parameters(model)
    _, experts = stored_parameters(model, expert_parallel=expert, expert_tensor_parallel=inner)
    assert experts * expert * inner == whole


def test_latent_down_projections_are_not_sharded():
    model = load_model("deepseek-v3")
    one = layer_weights(model.hidden_size, model.layers[0], keys_of())[0][0]
    eight = layer_weights(model.hidden_size, model.layers[0], keys_of(tensor_parallel=8))[0][0]
    down = 7168 * (1536 + 512 + 64)  # config.json of DeepSeek-V3
    assert one - eight < 7 / 8 * (one - down) + 1
    assert eight > down


FIELDS = st.fixed_dictionaries(
    {
        "tensor_parallel": st.sampled_from([1, 2, 4]),
        "pipeline_parallel": st.sampled_from([1, 2, 4]),
        "data_parallel": st.sampled_from([2, 4, 8]),
        "micro_batch_size": st.sampled_from([1, 2]),
        "micro_batches": st.sampled_from([4, 8]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "zero_stage": st.sampled_from([0, 1, 2, 3]),
        "expert_parallel": st.sampled_from([1, 2]),
    }
)
LEVELS = ["none", "selective", "full"]


@settings(max_examples=cases(15))
@given(fields=FIELDS, framework=st.sampled_from(["megatron", "megatron-2022", "fsdp"]))
def test_memory_falls_with_sharding_and_recomputation(project, small_moe, fields, framework):
    model = replace(small_moe, layers=small_moe.layers * 4)  # so that no one layer is a large part

    def total(**changes):
        """Without the reserve, which grows by a communicator with every axis in use."""
        found = project(model, "dgx-h100", framework, **{**fields, **changes})
        return found["memory_total"] - found["memory_reserve"]

    base = project(model, "dgx-h100", framework, **fields)
    whole = base["memory_total"] - base["memory_reserve"]
    assert base["memory_total"] == pytest.approx(
        sum(base[name] for name in MEMORY_COMPONENTS), rel=1e-14
    )
    assert all(base[name] >= 0 for name in MEMORY_COMPONENTS)
    tolerance = 1 + 1e-12
    assert total(tensor_parallel=2 * fields["tensor_parallel"]) <= whole * tolerance
    for stage in range(fields["zero_stage"] + 1, 4):
        assert total(zero_stage=stage) <= whole * tolerance
    for level in LEVELS[LEVELS.index(fields["recompute"]) + 1 :]:
        assert total(recompute=level) <= whole * tolerance
    assert total(micro_batch_size=2 * fields["micro_batch_size"]) >= whole
    plane = fields["tensor_parallel"] * fields["data_parallel"]
    most = min(plane, 16)
    assert total(expert_parallel=most) <= total(expert_parallel=1) * tolerance


def test_hsdp_shards_over_its_group_only(project, h100, small_dense):
    """8 replicas in groups of 4: each device owns a quarter."""
    fields = {"data_parallel": 8, "zero_stage": 3}
    whole = project(small_dense, h100, data_parallel=8, zero_stage=0)
    quarter = project(small_dense, h100, **fields, shard_group=4)
    eighth = project(small_dense, h100, **fields)
    for name in ("memory_parameters", "memory_gradients", "memory_optimizer"):
        assert quarter[name] == pytest.approx(whole[name] / 4)
        assert eighth[name] == pytest.approx(whole[name] / 8)


def test_context_ranks_share_optimizer_state(project, h100, small_dense):
    one = project(small_dense, h100, zero_stage=1, data_parallel=1)
    shared = project(small_dense, h100, zero_stage=1, data_parallel=1, context_parallel=4)
    assert shared["memory_optimizer"] == pytest.approx(one["memory_optimizer"] / 4)
    assert shared["memory_parameters"] == one["memory_parameters"]


@pytest.mark.parametrize(("precision", "size"), [("bf16", 2.0), ("fp16", 2.0)])
def test_parameter_bytes(project, h100, small_dense, precision, size):
    found = project(small_dense, h100, precision=precision)
    assert found["memory_parameters"] == size * small_dense.parameter_count()


def test_activations_scale_with_the_batch_and_the_context_degree(project, h100, small_dense):
    one = project(small_dense, h100)
    assert project(small_dense, h100, micro_batch_size=2)["memory_activations"] == pytest.approx(
        2 * one["memory_activations"]
    )
    assert project(small_dense, h100, context_parallel=2)["memory_activations"] == pytest.approx(
        one["memory_activations"] / 2
    )


def encoder_decoder(tokens=0):
    self_attention = AttentionSpec("full", 8, 8, 16)
    encoder = LayerSpec((replace(self_attention, causal=False),), (MlpSpec("dense", 256),))
    cross = replace(self_attention, causal=False, cross=True)
    decoder = LayerSpec((self_attention, cross), (MlpSpec("dense", 256),), norms=3)
    tower = TowerSpec("encoder", 64, (encoder, encoder, encoder), tokens, final_norm=True)
    return ModelSpec("t5", "t5", 64, 1000, (decoder,), towers=(tower,)), encoder, decoder


def part_of(model, kind, **fields):
    part = next(part for part in model_parts(model) if part.kind == kind)
    keys = keys_of(sequence_length=512, **fields)
    return part_memory(model, part, keys, load_framework("megatron", pads_vocabulary_to=1))


def test_an_encoder_is_held_ahead_of_the_first_layer():
    model, encoder, _ = encoder_decoder(tokens=256)
    found = part_of(model, "embedding")
    assert found.weights[0] == 1000 * 64 + model.towers[0].parameter_count()
    at = Scope(keys_of(sequence_length=256), load_framework("megatron"))
    own = layer_kept(at, encoder, 64.0)
    assert found.activations[0] == 3 * own.everything[0]
    full = part_of(model, "embedding", recompute="full")
    assert full.activations[0] == 3 * 256 * 64 * 2
    assert full.working[0] == own.everything[0] + own.widest[0] + 256 * 64 * 2


def test_a_tower_of_unknown_length_is_left_out():
    model, _, _ = encoder_decoder()
    vision = replace(model, towers=(replace(model.towers[0], name="vision"),))
    assert part_of(vision, "embedding").weights[0] == 1000 * 64
    assert part_of(model, "embedding").weights[0] > 1000 * 64  # an encoder reads as many tokens


def test_cross_attention_keeps_keys_of_what_is_encoded():
    (short, _, _), (long, _, _) = encoder_decoder(256), encoder_decoder(1024)
    kept = [part_of(model, "layer").activations[0] for model in (short, long)]
    assert kept[1] - kept[0] == (1024 - 256) * 2 * 8 * 16 * 2


def test_a_norm_stands_ahead_of_cross_attention():
    _, _, decoder = encoder_decoder()
    at = Scope(keys_of(sequence_length=512), load_framework("megatron"))
    two = replace(decoder, mixers=decoder.mixers[:1], norms=2)
    more = norms_kept(at, decoder, 64.0).everything - norms_kept(at, two, 64.0).everything
    assert more[0] == 512 * 64 * (2 + 2)
