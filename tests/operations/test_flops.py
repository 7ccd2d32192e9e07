"""Model FLOPs per token against published formulas, hand counts and measured-run tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.measured.row_model import model_from_row
from perfmodel.model.build import AttentionSpec
from perfmodel.model.presets import load_model
from perfmodel.operations.flops import attended_keys, matrix_parameters, model_flops_per_token

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
    from dataclasses import replace

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
    from dataclasses import replace

    rows = [row for row in training_runs if row["model"] == name and row["F_causal_GF_per_tok"]]
    assert rows
    model = replace(load_model(preset), mtp_layers=())
    for row in rows:
        ours = float(model_flops_per_token(model, int(row["seq"]))) / GF
        assert ours == pytest.approx(float(row["F_causal_GF_per_tok"]), rel=1e-4)
