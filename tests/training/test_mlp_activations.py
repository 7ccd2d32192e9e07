"""Bytes of feed-forward blocks, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.model.layers import LayerSpec, MlpSpec
from perfmodel.software.framework import load_framework
from perfmodel.training.activations import Scope
from perfmodel.training.mlp_activations import mlp_kept
from tests.training.gpt import keys_of
from tests.training.saved_layers import per_token

ROUTED = MlpSpec("moe", experts=8, experts_per_token=2, expert_intermediate_size=32)


def kept(mlp, framework="megatron", **fields):
    """Bytes per token of a block, without the input of its products."""
    return per_token(LayerSpec((), (mlp,), norms=0), 64, framework, **fields) - 64 * 2


@pytest.mark.parametrize(("gated", "unfused"), [(True, 2), (False, 0)])
def test_dense_blocks(gated, unfused):
    """What the activation reads, and the second product; unfused, the factor of the gate too."""
    dense = MlpSpec("dense", 256, gated=gated)
    assert kept(dense) == 256 * 2 * (3 if gated else 2)
    assert kept(dense, "fsdp") - kept(dense) == 256 * unfused


def test_routed_experts():
    """Inputs, outputs, gate and value, product of both per chosen expert; scores of all."""
    assert kept(ROUTED) == 2 * 2 * (64 + 64 + 3 * 32) + 8 * 8


def test_the_weighted_sum_of_eager_experts_goes_backward_in_single_precision():
    """transformers, integrations/moe.py: weights of the choice are fp32 and widen the product."""
    tokens = 128
    at = Scope(keys_of(sequence_length=tokens), load_framework("fsdp"))
    narrow = replace(ROUTED, expert_intermediate_size=16)
    assert mlp_kept(at, narrow, 64.0).widest == 3 * 4 * 2 * 64 * tokens
    fused = Scope(at.keys, load_framework("megatron"))
    assert mlp_kept(fused, narrow, 64.0).widest == 2 * 2 * 64 * tokens


@pytest.mark.parametrize(
    ("facts", "held"),
    [({"capacity_factor": 1.5}, 1.5), ({"expert_buffer": 1e9}, 4), ({"routing": "identical"}, 4)],
)
def test_experts_keep_the_rows_of_their_buffer(facts, held):
    """Inputs, gate, value and product for every row that is held, with the busiest rank's."""

    def everything(**changes):
        scope = Scope(keys_of(expert_parallel=8), load_framework("megatron", **changes))
        return float(np.ravel(mlp_kept(scope, ROUTED, 64.0).everything)[0])

    tokens = float(Scope(keys_of(), load_framework("megatron")).own[0])
    per_row = 2 * (64 + 3 * 32)
    assert everything(**facts) - everything() == (held - 1) * tokens * 2 * per_row


@pytest.mark.parametrize(("what", "mlp"), [("mlp", MlpSpec("dense", 256)), ("cheap moe", ROUTED)])
def test_modules_that_are_repeated_keep_their_input_alone(what, mlp):
    """All that they keep is dropped; their input is counted with the norm ahead."""

    def dropped(what):
        framework = load_framework("megatron", selective_recompute=what)
        at = Scope(keys_of(recompute="selective"), framework)
        found = mlp_kept(at, mlp, 64.0)
        return 1.0 - float(np.max(found.selective(at.policy, 0.0) / found.everything))

    assert dropped(what) == 1.0
    assert 0.0 < dropped("cheap") < 1.0


def test_the_gate_of_a_shared_expert_keeps_what_it_scales():
    shared = replace(ROUTED, shared_intermediate_size=16)
    assert kept(shared) - kept(ROUTED) == 2 * 3 * 16
    assert kept(replace(shared, shared_expert_gate=True)) - kept(shared) == 2 * 64


def test_latent_experts_dispatch_their_latent():
    wide = MlpSpec("moe", experts=8, experts_per_token=2, expert_intermediate_size=32)
    latent = replace(wide, latent_size=16)
    less = per_token(LayerSpec((), (wide,), norms=1), 64, "megatron") - per_token(
        LayerSpec((), (latent,), norms=1), 64, "megatron"
    )
    assert less == 2 * 2 * 2 * (64 - 16) - 2 * 16  # inputs and outputs of experts; their sum
