"""Layers in words: one line for a kind of layer."""

from __future__ import annotations

from perfmodel.model.layers import (
    AttentionSpec,
    LayerSpec,
    Mixer,
    MlpSpec,
    RecurrenceSpec,
)

_RECURRENCES = {
    "gated_delta": "gated delta rule",
    "kimi_delta": "Kimi delta attention",
    "mamba2": "Mamba-2",
    "mamba1": "Mamba-1",
    "lightning": "lightning attention",
}


def describe_layer(layer: LayerSpec) -> str:
    """Return one line about a kind of layer: its mixers, then its feed-forward blocks."""
    mixers = " beside ".join(describe_mixer(part) for part in layer.mixers)
    mlps = " beside ".join(describe_mlp(part) for part in layer.mlps)
    text = "; ".join(part for part in (mixers, mlps) if part)
    return f"{text}; {layer.streams} residual streams" if layer.streams > 1 else text


def describe_mixer(part: Mixer) -> str:
    """Return a few words about a mixer."""
    if isinstance(part, AttentionSpec):
        return _describe_attention(part)
    if isinstance(part, RecurrenceSpec):
        name = _RECURRENCES[part.kind]
        if part.kind == "mamba1":
            return f"{name}, {part.heads:,} channels, state {part.key_dim}"
        return f"{name}, {part.heads} heads, state {part.key_dim} x {part.value_dim}"
    return f"short convolution of {part.kernel} taps"


def _describe_attention(part: AttentionSpec) -> str:
    text = f"{part.kind} attention, {part.heads} heads"
    if part.key_value_heads != part.heads:
        text += f" in {part.key_value_heads} groups"
    text += f" of {part.head_dim}"
    if part.window:
        text += f", {'chunks of' if part.kind == 'chunked' else 'window'} {part.window:,}"
    if part.compression is not None:
        text += f", 1 in {part.compression.ratio} compressed"
    if part.indexer is not None:
        text += f", {part.indexer.top_k:,} keys selected"
    if part.shared_keys:
        text += ", keys of an earlier layer"
    return text + (", keys of the encoder" if part.cross else "")


def describe_mlp(part: MlpSpec) -> str:
    """Return a few words about a feed-forward block."""
    gate = "gated " if part.gated else ""
    if part.kind == "dense":
        return f"{gate}MLP of {part.intermediate_size:,}"
    text = (
        f"{part.experts} {gate}experts of {part.expert_intermediate_size:,}, "
        f"{part.experts_per_token} per token"
    )
    if part.latent_size:
        text += f", latent {part.latent_size:,}"
    if part.shared_intermediate_size:
        text += f", shared {part.shared_intermediate_size:,}"
    return text
