"""Attention, MLPs and layers: their parameters, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import ModelError
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.build import moe_model
from perfmodel.model.layers import LayerSpec, MlpSpec, layer_parameters
from perfmodel.model.pieces import parameters_of
from perfmodel.model.spec import ModelSpec


def test_latent_experts() -> None:
    # Nemotron-3 Super: E*2*l*f + 2 h l + h E + E, ungated
    h, experts, width, latent = 4096, 512, 2688, 1024
    spec = MlpSpec(
        "moe",
        gated=False,
        activation="relu2",
        experts=experts,
        experts_per_token=22,
        expert_intermediate_size=width,
        router_bias=True,
        latent_size=latent,
    )
    assert parameters_of(spec.pieces(h)) == (
        experts * 2 * latent * width + 2 * h * latent + h * experts + experts
    )
    active = sum(piece.active_parameters for piece in spec.pieces(h))
    assert active == 22 * 2 * latent * width + 2 * h * latent + h * experts + experts


def test_the_gate_of_a_shared_expert_multiplies_every_token() -> None:
    h = 64
    spec = MlpSpec(
        "moe",
        experts=4,
        experts_per_token=2,
        expert_intermediate_size=8,
        shared_intermediate_size=16,
        shared_expert_gate=True,
    )
    products = sum(piece.products for piece in spec.pieces(h))
    assert products == 2 * 3 * h * 8 + 3 * h * 16 + h * 4 + h


@given(experts=st.integers(1, 64), data=st.data())
def test_visiting_every_expert_activates_everything(experts: int, data: st.DataObject) -> None:
    def build(visited: int) -> ModelSpec:
        return moe_model(
            "m",
            layers=3,
            hidden_size=16,
            heads=4,
            vocab_size=32,
            experts=experts,
            experts_per_token=visited,
            expert_intermediate_size=8,
            shared_intermediate_size=8,
            first_dense_layers=1,
            intermediate_size=24,
        )

    visited = data.draw(st.integers(1, experts))
    everything = build(experts)
    assert everything.active_parameter_count() == everything.parameter_count()
    assert build(visited).parameter_count() == everything.parameter_count()
    idle = everything.active_parameter_count() - build(visited).active_parameter_count()
    assert idle == 2 * (experts - visited) * 3 * 16 * 8


def test_value_head_dim_follows_head_dim_unless_stated() -> None:
    assert AttentionSpec("full", 8, 2, 64).value_head_dim == 64
    assert AttentionSpec("full", 8, 2, 64, 32).value_head_dim == 32


def test_whole_qk_norm_holds_one_weight_per_channel() -> None:
    mlp = MlpSpec("dense", 8)

    def count(**fields: object) -> int:
        attention = AttentionSpec("full", 8, 2, 16, **fields)  # type: ignore[arg-type]
        return layer_parameters(LayerSpec((attention,), (mlp,)), 32).attention

    plain = count()
    assert count(qk_norm=True) - plain == 2 * 16
    assert count(qk_norm=True, qk_norm_scope="whole") - plain == (8 + 2) * 16
    assert count(sinks=True) - plain == 8
    assert count(qkv_bias=True, output_bias=True) - plain == (8 + 2 + 2) * 16 + 32


ATTENTION = AttentionSpec("full", 8, 2, 64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 0}, "key 'heads': 0 should be a positive integer"),
        ({"heads": True}, "key 'heads': True should be"),
        ({"heads": 8.0}, "key 'heads': 8.0 should be"),
        ({"heads": 10**12}, "key 'heads': 1000000000000 should be at most"),
        ({"key_value_heads": 3}, "key 'heads': 8 should be a multiple of 'key_value_heads'"),
        ({"head_dim": float("nan")}, "key 'head_dim': nan should be"),
        ({"kind": "ful"}, "key 'kind': 'ful' should be one of full, sliding, chunked, mla"),
        ({"kind": "sliding"}, "key 'window': 0 should be positive for kinds 'sliding'"),
        ({"window": 5}, "key 'window': 5 should be positive for kinds 'sliding' and 'chunked'"),
        ({"kv_lora_rank": 5}, "should be 0 for kind 'full'"),
        ({"kind": "mla"}, "key 'kv_lora_rank': 0 should be a positive integer"),
        ({"qkv_bias": 1}, "key 'qkv_bias': 1 should be true or false"),
    ],
)
def test_attention_at_fault_names_the_key(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError) as error:
        dataclasses.replace(ATTENTION, **changes)  # type: ignore[arg-type]
    assert message in str(error.value)


MOE = MlpSpec("moe", experts=8, experts_per_token=2, expert_intermediate_size=16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experts_per_token": 9}, "'experts_per_token': 9 should be at most 'experts'"),
        ({"experts": 0}, "key 'experts': 0 should be a positive integer"),
        ({"intermediate_size": 5}, "key 'intermediate_size': 5 should be 0 for kind 'moe'"),
        ({"shared_expert_gate": True}, "there is no shared expert"),
        ({"kind": "dense"}, "key 'intermediate_size': 0 should be a positive integer"),
        ({"kind": "dense", "intermediate_size": 8}, "key 'experts': belongs to kind 'moe'"),
        ({"activation": "tanhshrink"}, "key 'activation': 'tanhshrink' should be one of"),
    ],
)
def test_mlp_at_fault_names_the_key(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError) as error:
        dataclasses.replace(MOE, **changes)  # type: ignore[arg-type]
    assert message in str(error.value)
