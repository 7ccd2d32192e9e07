"""Which matrices adapters stand beside, their sizes, and targets that a model lacks."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.model.adapters import FROZEN_BYTES, AdapterSpec
from perfmodel.model.presets import load_model, model_from_record
from perfmodel.training.flops import adapter_parameters


@pytest.mark.parametrize(
    ("targets", "per_layer"),
    [
        # transformers: an adapter for each matrix of Llama 3.1 8B (h 4096, 8 groups of 128).
        (("q_proj", "v_proj"), (4096 + 4096) + (4096 + 1024)),
        (("gate_proj", "up_proj"), 2 * (4096 + 14336)),
        # Megatron: one for the product as it runs.
        (("linear_qkv",), 4096 + 6144),
        (("linear_qkv", "linear_proj"), 4096 + 6144 + 2 * 4096),
        (("all_linear",), 4096 + 6144 + 2 * 4096 + 4096 + 2 * 14336 + 14336 + 4096),
    ],
)
def test_parameters_are_rank_times_inputs_and_outputs(targets, per_layer):
    model = load_model("llama-3.1-8b", adapters=AdapterSpec(16, targets))
    assert adapter_parameters(model) == 32 * 16 * per_layer


def test_trained_parameters_as_peft_prints_them():
    """``trainable params: 4194304`` (tloen/alpaca-lora, finetune.py: rank 8, q_proj and v_proj)."""
    model = load_model("llama-2-7b", adapters=AdapterSpec(8, ("q_proj", "v_proj")))
    assert adapter_parameters(model) == 4_194_304


def test_every_routed_expert_has_an_adapter():
    model = load_model("mixtral-8x7b", adapters=AdapterSpec(4, ("linear_fc2",)))
    assert adapter_parameters(model) == 32 * 8 * 4 * (14336 + 4096)


def test_frozen_matrices_take_half_a_byte_and_their_scales():
    # QLoRA, arXiv:2305.14314, section 3: double quantisation leaves 0.127 bits of scales a weight.
    assert 8 * FROZEN_BYTES["nf4"] == pytest.approx(4 + 0.127, abs=5e-4)


def test_models_say_what_is_trained_and_come_back_from_records():
    model = load_model("llama-3.1-8b", adapters=AdapterSpec(8, ("q_proj",), "nf4"))
    assert model.name == "llama-3.1-8b[lora_rank=8,lora_targets=q_proj,lora_frozen=nf4]"
    assert "frozen" in model.remarks[-1]
    assert model_from_record(json.loads(json.dumps(asdict(model)))) == model
    former = {key: value for key, value in asdict(model).items() if key != "adapters"}
    assert model_from_record(former).adapters is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "'lora_rank': 0 should be a positive integer"),
        ((8, ("q_projj",)), "'q_projj' is no matrix; did you mean q_proj"),
        ((8, ()), "should name at least one matrix"),
        ((8, "q_proj"), "should be a tuple"),
        ((8, ("kv_b_proj",)), "no layer has 'kv_b_proj'; there are linear_qkv"),
        ((8, ("q_proj",), "fp3"), "'lora_frozen': 'fp3' should be one of"),
    ],
)
def test_what_no_layer_has_is_refused(arguments, message):
    with pytest.raises(ModelError, match="lora_") as raised:
        load_model("llama-3.1-8b", adapters=AdapterSpec(*arguments))
    assert message in str(raised.value)
