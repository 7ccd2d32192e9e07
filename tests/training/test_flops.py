"""Model FLOPs per token against published formulas, hand counts and measured-run tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.measured.row_model import model_from_row
from perfmodel.model.attention import AttentionSpec, CompressionSpec, IndexerSpec
from perfmodel.model.presets import load_model
from perfmodel.model.spec import TowerSpec
from perfmodel.training.flops import (
    attended_keys,
    matrix_parameters,
    model_flops_per_token,
    scored_keys,
)
from tests import data
from tests.operations import layers

GF = 1e9


def test_llama_3_1_70b_by_hand():
    model = load_model("llama-3.1-70b")
    attention = 8192 * (8192 + 2 * 1024) + 8192 * 8192
    weights = 80 * (attention + 3 * 8192 * 28672) + 8192 * 128256  # config.json of Llama-3.1-70B
    assert 80 * matrix_parameters(model, model.layers[0]) + 8192 * 128256 == weights
    causal = 6 * weights + 80 * 12 * 8192 * 8192 / 2
    assert float(model_flops_per_token(model, 8192)) == pytest.approx(causal, rel=1e-14)
    assert causal / GF == pytest.approx(449.2, rel=1e-3)  # 6 × 69.5e9 + 6 × 80 × 8192²
    non_causal = 6 * weights + 80 * 12 * 8192 * 8192
    assert float(model_flops_per_token(model, 8192, causal=False)) == pytest.approx(non_causal)


def test_llama_3_405b_budget():
    # Llama 3 (arXiv:2407.21783, section 3.2): 3.8e25 FLOP for 15.6e12 tokens, as 6 N D.
    per_token = float(model_flops_per_token(load_model("llama-3.1-405b"), 8192))
    assert per_token * 15.6e12 == pytest.approx(3.8e25, rel=0.08)


def test_deepseek_v3_active_parameters():
    # DeepSeek-V3 (arXiv:2412.19437): 37e9 activated parameters of 671e9.
    model = load_model("deepseek-v3")
    weights = sum(matrix_parameters(model, layer) for layer in model.layers)
    active = weights + 2 * model.vocab_size * model.hidden_size
    assert active == pytest.approx(37e9, rel=0.02)


def test_multi_token_prediction_adds_its_layer_projection_and_logits():
    model = load_model("deepseek-v3")
    without = replace(model, mtp_layers=())
    with_module = replace(model, mtp_layers=(model.layers[-1],))
    difference = float(model_flops_per_token(with_module, 4096)) - float(
        model_flops_per_token(without, 4096)
    )
    hidden = 7168
    layer = matrix_parameters(model, model.layers[-1])
    scores = 128 * (192 + 128) * 4096 / 2
    extra = 2 * hidden * hidden + hidden * 129280
    assert difference == pytest.approx(6 * (layer + extra + scores), rel=1e-12)


def sliding(window):
    return AttentionSpec("sliding", 8, 8, 64, window=window)


@given(st.integers(1, 300), st.integers(1, 300))
def test_windows_against_counting(length, window):
    """The mean of min(i + 1/2, window) over tokens, in the same half-diagonal convention."""
    causal = float(attended_keys(sliding(window), length, causal=True))
    counted = np.minimum(np.arange(length) + 1, window).mean()
    assert causal <= counted + 1e-9  # the diagonal counts half
    assert counted - causal <= 0.5 + 1e-9
    non_causal = float(attended_keys(sliding(window), length, causal=False))
    assert non_causal == min(length, window)
    assert causal <= non_causal


def test_a_window_as_long_as_the_sequence_is_no_window():
    spec = sliding(4096)
    assert float(attended_keys(spec, 4096, causal=True)) == 2048
    assert float(attended_keys(spec, 1024, causal=True)) == 512


@given(st.lists(st.integers(1, 2**20), min_size=1, max_size=20))
def test_longer_sequences_never_cost_less_per_token(lengths):
    model = load_model("gemma-3-27b")
    for causal in (True, False):
        flops = model_flops_per_token(model, sorted(lengths), causal=causal)
        assert flops.shape == (len(lengths),)
        assert np.all(np.diff(flops) >= 0)


def test_measured_run_table(training_runs):
    """Columns of the table: causal halves the scores, neither counts MTP, and its
    non-causal one ignores sliding windows, which ours does not."""
    checked = 0
    for row in training_runs:
        if not row["F_causal_GF_per_tok"]:
            continue
        model = model_from_row(row)
        for column, causal in (("F_causal_GF_per_tok", True), ("F_noncausal_GF_per_tok", False)):
            if not causal and "sliding" in row["attn_note"]:
                continue
            ours = float(model_flops_per_token(model, int(row["seq"]), causal=causal)) / GF
            # The table rounds to 1e-3 GFLOP.
            assert ours == pytest.approx(float(row[column]), rel=5e-4, abs=1e-3), row["id"]
            checked += 1
    assert checked > 1000


@pytest.mark.parametrize(
    ("preset", "name"),
    [
        ("llama-3.1-405b", "LLAMA3.1_405B"),
        ("qwen3-30b-a3b", "Qwen3_30B_a3B"),
        ("deepseek-v3", "DeepSeekV3"),
    ],
)
def test_presets_agree_with_the_measured_run_table(training_runs, preset, name):
    rows = [row for row in training_runs if row["model"] == name and row["F_causal_GF_per_tok"]]
    assert rows
    model = replace(load_model(preset), mtp_layers=())
    for row in rows:
        ours = float(model_flops_per_token(model, int(row["seq"]))) / GF
        assert ours == pytest.approx(float(row["F_causal_GF_per_tok"]), rel=1e-4)


# FLOP of one sequence of 256 tokens, forward, and forward and backward: torch's FlopCounterMode
# on the classes of transformers 5.23 on the meta device, less what it counts by another rule
# (`python benchmarks/oracle_transformers.py flops`, which names it).
COUNTED = {
    "Qwen--Qwen3.5-35B-A3B": (1563510702080, 4690532106240),
    "deepseek-ai--DeepSeek-V3.2": (19580755902464, 57739325734912),
    "deepseek-ai--DeepSeek-V4-Flash": (7217658986496, 21410579742720),
    "google--gemma-4-26B-A4B": (1994357997568, 5983073992704),
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": (8327035617280, 24981106851840),
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (1678921170944, 5036763512832),
}


@pytest.mark.parametrize("name", COUNTED)
def test_flop_equal_those_that_torch_counts(name):
    model = load_model(data.needed(data.MODEL_CONFIGS / f"{name}.json"))
    # Run eagerly, every layer multiplies the full square.
    layers = tuple(
        replace(
            layer,
            mixers=tuple(
                replace(part, kind="full", window=0) if getattr(part, "window", 0) else part
                for part in layer.mixers
            ),
        )
        for layer in model.layers
    )
    full = replace(model, layers=layers, mtp_layers=(), towers=())
    for backward, counted in zip((False, True), COUNTED[name], strict=True):
        per_token = model_flops_per_token(full, 256, causal=False, backward=backward)
        assert float(per_token) * 256 == counted


def test_recurrences_by_hand():
    """Qwen3-Next's mixer: 180,224 FLOP per head of 128 in chunks of 64, beside its products."""
    layer = layers.LAYERS["gated delta"]
    model = layers.model_of("gated delta")
    products = 2.0 * matrix_parameters(model, layer)
    logits = 2.0 * layers.HIDDEN * layers.VOCABULARY
    for length in (64, 4096):
        found = float(model_flops_per_token(model, length, backward=False))
        assert found == products + logits + 32 * 180_224
        assert float(model_flops_per_token(model, length)) == 3 * found


@pytest.mark.parametrize(
    ("name", "scan"),
    [
        ("mamba2", 8 * 2 * 128 * 128 + 64 * (2 * 128 * 64 + 4 * 128 * 64)),
        ("mamba1", 9 * 4096 * 16),
        ("lightning", 32 * (2 * 256 * 256 + 4 * 128**2)),
        ("kimi delta", 32 * 180_224),
        ("short convolution", 0),
    ],
)
def test_scans_do_not_depend_on_the_length(name, scan):
    model = layers.model_of(name)
    products = 2.0 * matrix_parameters(model, model.layers[0])
    logits = 2.0 * layers.HIDDEN * layers.VOCABULARY
    for causal in (True, False):
        found = model_flops_per_token(model, [128, 8192], causal=causal, backward=False)
        np.testing.assert_array_equal(found, products + logits + scan)


@given(st.integers(1, 300), st.integers(1, 60))
def test_chunks_against_counting(length, chunk):
    spec = AttentionSpec("chunked", 8, 8, 64, window=chunk)
    positions = np.arange(length) % chunk
    causal = float(attended_keys(spec, length, causal=True))
    assert causal == pytest.approx((positions + 0.5).mean())  # the diagonal counts half
    full = float(attended_keys(spec, length, causal=False))
    assert full == pytest.approx(2 * causal)
    if length % chunk == 0:
        assert causal == pytest.approx(chunk / 2)


@given(st.integers(1, 400), st.integers(1, 60), st.integers(2, 8), st.integers(1, 40))
def test_chosen_and_compressed_keys_against_counting(length, top_k, ratio, window):
    """Means of min(position, k), and of min(position / r, k), in half-diagonal convention."""
    middle = np.arange(length) + 0.5
    chosen = replace(layers.SPARSE_LATENT, indexer=IndexerSpec(4, 64, top_k, query_inputs=512))
    keys = float(attended_keys(chosen, length, causal=True))
    assert keys == pytest.approx(np.minimum(middle, top_k).mean(), abs=0.5)
    assert float(attended_keys(chosen, length, causal=False)) == min(length, top_k)
    assert float(scored_keys(chosen, length, causal=True)) == length / 2
    indexer = IndexerSpec(4, 64, top_k, compressed=True)
    near = replace(layers.WINDOW_OF_ONE, window=window)
    few = replace(near, compression=CompressionSpec(ratio), indexer=indexer)
    keys = float(attended_keys(few, length, causal=True))
    by_count = np.minimum(middle, window).mean() + np.minimum(middle / ratio, top_k).mean()
    assert keys == pytest.approx(by_count, abs=1.0)
    every = replace(near, compression=CompressionSpec(ratio))
    assert float(attended_keys(every, length, causal=True)) == pytest.approx(
        np.minimum(middle, window).mean() + length / ratio / 2, abs=0.5
    )


def test_an_indexer_counts_forward_only():
    model, length = layers.model_of("sparse latent"), 4096
    indexer = layers.SPARSE_LATENT.indexer
    products = sum(piece.products for piece in indexer.pieces(layers.HIDDEN, None))
    choosing = 2.0 * products + 2.0 * 32 * 128 * length / 2
    forward = float(model_flops_per_token(model, length, backward=False))
    assert float(model_flops_per_token(model, length)) == 3 * forward - 2 * choosing
    shared = layers.model_of("shared choice")
    assert forward - float(model_flops_per_token(shared, length, backward=False)) == choosing


def test_the_gate_of_a_shared_expert_is_a_product():
    layer = layers.LAYERS["gated delta"]
    without = replace(layer, mlps=(replace(layer.mlps[0], shared_expert_gate=False),))
    model = layers.model_of("gated delta")
    gate = matrix_parameters(model, layer) - matrix_parameters(model, without)
    assert gate == layers.HIDDEN


def test_towers_share_their_tokens_among_those_of_a_sequence():
    tower = TowerSpec("vision", 1024, (layers.LAYERS["sliding"],) * 2, tokens=256)
    plain = layers.model_of("sliding")
    alone = replace(plain, hidden_size=1024, layers=tower.layers)
    found = float(model_flops_per_token(replace(plain, towers=(tower,)), 1024))
    share = float(model_flops_per_token(alone, 256)) - 6.0 * 1024 * layers.VOCABULARY
    assert found == pytest.approx(float(model_flops_per_token(plain, 1024)) + share / 4)
    unstated = replace(plain, towers=(replace(tower, tokens=0),))
    assert float(model_flops_per_token(unstated, 1024)) == float(model_flops_per_token(plain, 1024))


def test_cross_attention_meets_all_tokens_of_the_encoder():
    model = layers.model_of("encoder-decoder")

    def forward(tokens):
        encoder = TowerSpec("encoder", layers.HIDDEN, (), tokens=tokens)
        towers = replace(model, towers=(encoder,) if tokens else ())
        return float(model_flops_per_token(towers, 1024, backward=False))

    assert forward(0) == forward(1024)
    # Twice as many: scores and values of as many more keys, and their projections.
    more = 2.0 * 16 * 256 * 1024 + 2.0 * layers.HIDDEN * 2 * 16 * 128
    assert forward(2048) - forward(1024) == more
