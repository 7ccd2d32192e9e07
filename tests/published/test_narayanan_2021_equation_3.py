"""Model FLOP of a step against Narayanan et al. 2021 (arXiv:2104.04473), equation 3."""

from __future__ import annotations

import pytest

from perfmodel.model.build import dense_model
from perfmodel.training.flops import model_flops_per_token


def narayanan_2021_equation_3(batch, length, layers, hidden, vocabulary):
    """FLOP of an iteration; its 4/3 for recomputing the forward is taken out by the caller."""
    return (
        96
        * batch
        * length
        * layers
        * hidden**2
        * (1 + length / (6 * hidden) + vocabulary / (16 * layers * hidden))
    )


@pytest.mark.parametrize(
    ("layers", "hidden", "heads"),  # Narayanan et al. 2021 (arXiv:2104.04473), table 1
    [(24, 2304, 24), (30, 3072, 32), (36, 4096, 32), (96, 12288, 96), (128, 25600, 160)],
)
def test_narayanan_2021_equation_3(layers, hidden, heads):
    length, vocabulary = 2048, 51200
    model = dense_model(
        "gpt",
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        intermediate_size=4 * hidden,
        vocab_size=vocabulary,
        gated=False,
        tied_embeddings=True,
        position_embedding="learned",
        max_positions=length,
    )
    ours = float(model_flops_per_token(model, length, causal=False)) * length
    layer_term = 72 * length * layers * hidden**2 * (1 + length / (6 * hidden))
    # The formula's 4/3 covers the layers; its logits term, 6 s h V, has no recomputation.
    assert ours == pytest.approx(layer_term + 6 * length * hidden * vocabulary, rel=1e-12)
    published = narayanan_2021_equation_3(1, length, layers, hidden, 0) / (4 / 3)
    assert ours - 6 * length * hidden * vocabulary == pytest.approx(published, rel=1e-12)
    whole = narayanan_2021_equation_3(1, length, layers, hidden, vocabulary)
    assert 96 / 16 == 6  # so the logits term of equation 3 is 6 s h V as well
    assert ours == pytest.approx(
        (whole - 6 * length * hidden * vocabulary) * 3 / 4 + 6 * length * hidden * vocabulary,
        rel=1e-12,
    )
