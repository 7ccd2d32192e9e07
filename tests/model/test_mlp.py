"""Feed-forward blocks: parameters of latent and of shared experts."""

from __future__ import annotations

from perfmodel.model.mlp import MlpSpec
from perfmodel.model.pieces import parameters_of


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
