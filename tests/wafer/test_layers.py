"""Parts of layers: their multiply-adds are the model's."""

import numpy as np
import pytest

from perfmodel.base.errors import ModelError
from perfmodel.kernels.wafer.columns import DECODE, PREFILL, PRODUCT, SUM
from perfmodel.model.presets import load_model
from perfmodel.wafer.layers import wafer_parts


@pytest.mark.parametrize(
    "name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v3", "falcon-7b", "gpt-oss-20b"]
)
@pytest.mark.parametrize("phase", [DECODE, PREFILL])
def test_weights_of_products_are_those_of_the_model(name, phase):
    model = load_model(name)
    parts = wafer_parts(model, phase)
    columns = parts.columns
    counts = np.append(parts.counts, 1.0)
    of = np.repeat(np.arange(counts.size), np.diff(columns.first))
    products = columns.kind == PRODUCT
    weights = (columns.k * columns.n * columns.copies * counts[of])[products].sum()
    vectors = model.parameter_count() - model.embedding_parameters()
    assert weights == pytest.approx(
        vectors + model.tied_embeddings * model.vocab_size * model.table_width, rel=2e-3
    )
    visited = (columns.k * columns.n * columns.visited * counts[of])[products].sum()
    assert visited == pytest.approx(
        model.active_parameter_count(include_embeddings=False), rel=2e-3
    )


def test_sums_of_a_layer_are_those_of_the_published_kernels():
    """He et al., OSDI 2025: ten all-reduces in a decoded layer, in this order."""
    parts = wafer_parts(load_model("llama-3-8b"), DECODE)
    first = slice(0, parts.columns.first[1])
    summed = [
        name
        for name, joined in zip(parts.names[first], parts.columns.joined[first], strict=True)
        if not joined
    ]
    assert summed == [
        *("attention_norm", "value", "scores", "softmax_max", "softmax_sum", "values"),
        *("output", "mlp_norm", "up", "down"),
    ]
    assert (parts.columns.kind[first] == SUM).sum() == 4


def test_latent_attention_keeps_latents():
    model = load_model("deepseek-v3")
    parts = wafer_parts(model, DECODE)
    assert parts.columns.cache.tolist() == [[576.0, 0.0]] * 2
    scores = parts.names.index("scores")
    assert parts.columns.k[scores] == 128 * 576
    assert wafer_parts(model, PREFILL).columns.k[scores] == 128 * 192


def test_layers_without_a_rule_are_refused():
    for name, word in (("mamba-2.8b", "mixers"), ("deepseek-v3.2", "sparse")):
        with pytest.raises(ModelError, match=word):
            wafer_parts(load_model(name), DECODE)
