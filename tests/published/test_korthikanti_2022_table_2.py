"""Activations of a layer against Korthikanti et al. 2022 (arXiv:2205.05198), table 2."""

from __future__ import annotations

import pytest

from perfmodel.kernels.step.memory import in_flight
from perfmodel.kernels.step.tables import INTERLEAVED
from tests.training.gpt import SEQUENCE, gpt, layer_activations

# a heads, h hidden size, L layers of Korthikanti et al. 2022 (arXiv:2205.05198), table 3
GPT_22B, GPT_175B = (64, 6144, 48), (96, 12288, 96)
GPT_530B, GPT_1T = (128, 20480, 105), (160, 25600, 128)

KORTHIKANTI_TABLE_2 = {
    # Configuration: strategy fields, and bytes per layer in units of s b h.
    "no parallelism": (
        {"tensor_parallel": 1, "sequence_parallel": False, "recompute": "none"},
        lambda t, ash: 34 + 5 * ash,
    ),
    "tensor parallel": (
        {"sequence_parallel": False, "recompute": "none"},
        lambda t, ash: 10 + 24 / t + 5 * ash / t,
    ),
    "tensor and sequence parallel": (
        {"sequence_parallel": True, "recompute": "none"},
        lambda t, ash: 34 / t + 5 * ash / t,
    ),
    "tensor parallel, selective recomputation": (
        {"sequence_parallel": False, "recompute": "selective"},
        lambda t, ash: 10 + 24 / t,
    ),
    "tensor and sequence parallel, selective recomputation": (
        {"sequence_parallel": True, "recompute": "selective"},
        lambda t, ash: 34 / t,
    ),
    "full recomputation": (
        {"sequence_parallel": False, "recompute": "full"},
        lambda t, ash: 2,
    ),
    "full recomputation of the sharded input": (
        {"sequence_parallel": True, "recompute": "full"},
        lambda t, ash: 2 / t,
    ),
}


@pytest.mark.parametrize("size", [GPT_22B, GPT_175B, GPT_530B, GPT_1T])
@pytest.mark.parametrize("name", KORTHIKANTI_TABLE_2)
@pytest.mark.parametrize("batch", [1, 4])
def test_korthikanti_2022_table_2(size, name, batch):
    heads, hidden, layers = size
    fields, expected = KORTHIKANTI_TABLE_2[name]
    fields = {"tensor_parallel": 8, "micro_batch_size": batch, **fields}
    unit = SEQUENCE * batch * hidden
    ash = heads * SEQUENCE / hidden
    assert layer_activations(gpt(heads, hidden, layers), **fields) == pytest.approx(
        unit * expected(fields["tensor_parallel"], ash), rel=1e-12
    )


def test_korthikanti_2022_attention_share():
    # Section 5: 5 a s / h is 80 for GPT-3 and 64 for the 530B model, so selective
    # recomputation saves 70 % and 65 % of the activations.
    for size, ratio, saved in ((GPT_175B, 80, 0.70), (GPT_530B, 64, 0.65)):
        model = gpt(*size)
        everything = layer_activations(model)
        kept = layer_activations(model, recompute="selective")
        assert 34 * (everything - kept) / kept == pytest.approx(ratio)
        assert 1 - kept / everything == pytest.approx(saved, abs=0.01)


def test_flash_attention_replaces_the_matrix_by_one_statistic_per_query():
    model = gpt(*GPT_175B)
    unit = SEQUENCE * 12288
    fused = layer_activations(model, "megatron")
    # 34 sbh without the two dropout masks, and an fp32 number per query and head.
    assert fused == pytest.approx(unit * 32 + 4 * SEQUENCE * 96, rel=1e-12)


@pytest.mark.parametrize("p", [2, 4, 8, 35])
@pytest.mark.parametrize("v", [2, 3, 4])
def test_korthikanti_2022_interleaving_factor(p, v):
    """First stage: L/p layers × p × (1 + (p - 1)/(p v)) micro-batches, section 4.2.3."""
    assert in_flight(INTERLEAVED, 0, 10_000, p, v) == pytest.approx(p * (1 + (p - 1) / (p * v)))
