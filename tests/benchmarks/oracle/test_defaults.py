"""Class defaults of transformers, collected as data."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest

from tests.data import table_of

DATA = resources.files("perfmodel.model") / "families" / "defaults.json"


@pytest.fixture
def defaults(script: Any) -> Any:
    return script.load("oracle.defaults")


SOURCE = """
    def __post_init__(self, **kwargs):
        interval = kwargs.pop("full_attention_interval", 4)
        kwargs.setdefault("heads", self.num_heads)
        if self.width is None:
            self.width = 8
        if self.computed is None:
            self.computed = 4 * self.width
        if self.other is None:
            self.width = 9
        self.lists = [] if self.lists is None else self.lists
        self.depth = self.depth if self.depth is not None else 3
        self.unrelated = 5 if self.depth is None else 6
"""


def test_what_a_class_fills_in_is_read_from_its_source(defaults: Any) -> None:
    found = dict(defaults.filled_in(SOURCE))
    assert found == {"full_attention_interval": 4, "width": 8, "lists": [], "depth": 3}


@pytest.mark.parametrize(
    ("key", "value", "shapes"),
    table_of(__file__, "keys_that_shape_a_model_are_kept"),
)
def test_keys_that_shape_a_model_are_kept(
    defaults: Any, key: str, value: Any, shapes: bool
) -> None:
    assert defaults.shapes_the_model(key, value) is shapes


def test_one_entry_is_one_line_and_the_text_is_json(defaults: Any) -> None:
    tables = {"defaults": {"b": {"hidden_size": 4}, "a": {}}, "names": {}}
    text = defaults.formatted(tables, "transformers 1")
    assert json.loads(text) == {"source": "transformers 1", **tables}
    assert '\n"a": {},\n"b": {"hidden_size": 4}\n' in text


def test_the_stored_file_is_sorted_and_complete() -> None:
    document = json.loads(DATA.read_text(encoding="utf-8"))
    tables = {"architectures", "defaults", "names", "sections", "section_values"}
    assert set(document) == {"source", *tables}
    for name, table in document.items():
        if name != "source":
            assert list(table) == sorted(table)
    known = set(document["defaults"])
    assert set(document["names"]) <= known
    assert set(document["sections"]) <= known
    assert document["defaults"]["deepseek_v3"]["first_k_dense_replace"] == 3
    assert document["defaults"]["qwen3_next"]["full_attention_interval"] == 4
    assert document["names"]["gpt2"]["hidden_size"] == "n_embd"
    assert document["section_values"]["mistral3"]["text_config"]["num_hidden_layers"] == 40
    assert document["architectures"]["LlamaForCausalLM"] == "llama"


def test_the_stored_file_is_what_transformers_says(defaults: Any) -> None:
    pytest.importorskip("transformers", reason="transformers is in the extra `oracle` only")
    stored = json.loads(DATA.read_text(encoding="utf-8"))
    version = defaults.installed_version()
    if stored["source"] != version:
        pytest.skip(f"stored are the defaults of {stored['source']}, installed is {version}")
    assert defaults.formatted(defaults.collect(), version) == DATA.read_text(encoding="utf-8")
