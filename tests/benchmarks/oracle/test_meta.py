"""Models built without weights and counted; needs the extra `oracle`."""

from __future__ import annotations

import csv
from typing import Any

import pytest

from tests.data import MODEL_CONFIGS, needed

NO_ORACLE = "torch and transformers are in the extra `oracle` only"
pytestmark = pytest.mark.filterwarnings("default")  # of torch and transformers, not ours


@pytest.fixture
def meta(script: Any) -> Any:
    pytest.importorskip("torch", reason=NO_ORACLE)
    pytest.importorskip("transformers", reason=NO_ORACLE)
    return script.load("oracle.meta")


def counts(meta: Any, **keys: Any) -> Any:
    return meta.count(meta.configuration(keys))


SMALL = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 10}


def test_a_dense_model(meta: Any) -> None:
    # Attention 4 h^2, MLP 3 h f, two norms; token table, final norm and output matrix.
    layer = 4 * 8 * 8 + 3 * 8 * 16 + 2 * 8
    found = counts(meta, model_type="llama", intermediate_size=16, **SMALL)
    assert found.layers == (layer, layer)
    assert found.text == found.active == 2 * layer + 2 * 80 + 8
    assert found.towers == 0


def test_tied_matrices_count_once(meta: Any) -> None:
    alone = counts(meta, model_type="llama", intermediate_size=16, **SMALL)
    tied = counts(meta, model_type="llama", intermediate_size=16, tie_word_embeddings=True, **SMALL)
    assert alone.text - tied.text == 80


def test_idle_experts_are_left_out_of_what_is_active(meta: Any) -> None:
    found = counts(
        meta,
        model_type="mixtral",
        intermediate_size=16,
        num_local_experts=4,
        num_experts_per_tok=1,
        num_key_value_heads=2,
        **SMALL,
    )
    assert found.text - found.active == 2 * 3 * (3 * 8 * 16)


def test_what_transformers_cannot_build_says_why(meta: Any) -> None:
    with pytest.raises(meta.NoOracleError, match="no model_type 'nonsense'"):
        counts(meta, model_type="nonsense")


def test_the_published_counts_are_reproduced(meta: Any) -> None:
    with needed(MODEL_CONFIGS / "exact_parameters.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        found = meta.count(meta.read(MODEL_CONFIGS / row["config"]))
        assert found.text - found.correction == int(row["text_parameters"]), row["config"]
        assert found.active == int(row["active_parameters"]), row["config"]
        assert found.correction == int(row["correction_buffers"]), row["config"]
        assert len(found.layers) == int(row["layers"]), row["config"]
