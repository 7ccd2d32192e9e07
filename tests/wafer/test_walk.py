"""The walk through a model's blocks, followed by one who only writes down where it comes."""

from __future__ import annotations

import pytest

from perfmodel.model.presets import load_model
from perfmodel.wafer.setting import CoreSetting
from perfmodel.wafer.system import WaferSystem
from perfmodel.wafer.walk import Walk

SYSTEM = WaferSystem(8, (2, 4), tensor_parallel=4, sequence_parallel=2, ffn_tensor_parallel=8)


class Names(Walk[str]):
    """Takes the name of an operation for what it makes."""

    def __init__(self, *given):
        super().__init__(*given)
        self.found = []

    def put(self, word, *sizes):
        self.found.append((self.name(word), *sizes))
        return self.name(word)

    def linear(self, word, x, inner, outer):
        return self.put(word, inner, outer)

    def by_head(self, word, x, inner, outer, heads):
        return self.put(word, inner, outer, heads)

    def softmax(self, spec, shape, given):
        return self.put(shape.word, shape.heads, shape.key_heads, shape.width, *given)

    def merged(self, x, shape):
        return x

    def reduced(self, word, x, axis):
        return self.put(word, axis)

    def gated(self, up, gate):
        return self.put("add")

    def experts(self, spec, number, x):
        return self.put("experts", number)

    def last_tokens(self, x):
        return x

    def gathered(self, x):
        return x


def found(model, phase, layer, names=Names):
    walk = names(CoreSetting(load_model(model), SYSTEM, phase, 2, 8))
    walk.block("layer", layer, "x")
    return [(name.removeprefix("layer_"), *sizes) for name, *sizes in walk.found]


def test_latent_attention_of_a_step_stays_in_the_latent_space():
    assert found("deepseek-v3", "decode", 3) == [
        ("attn_absorb_wkva", 7168, 576),
        ("attn_absorb_wqa", 7168, 1536),
        ("attn_absorb_wqb", 1536, 32 * 192),
        ("attn_absorb_wkvb1", 128, 512, 32),
        (
            "attn_absorb_absorbattn", 32, 1, 2 * 512 + 64,
            *(f"layer_attn_absorb_{word}" for word in ("wkvb1", "wqb", "wkva")),
        ),
        ("attn_absorb_wkvb2", 512, 128, 32),
        ("attn_absorb_wo", 32 * 128, 7168),
        ("attn_absorb_ar_tp", "tensor"),
        ("moe_experts", 3),
    ]  # fmt: skip


@pytest.mark.parametrize("first", [False, True])
def test_keys_of_all_heads_come_before_the_queries_where_asked_for(first):
    class Ordered(Names):
        keys_first = first

    names = [name for name, *_ in found("deepseek-v3", "prefill", 0, Ordered)]
    queries, keys = ["attn_naive_wqa", "attn_naive_wqb"], ["attn_naive_wkvb"]
    assert names[1:4] == (keys + queries if first else queries + keys)
    assert names[-5:] == ["ffn_up", "ffn_gate", "ffn_add", "ffn_down", "ffn_ar"]


def test_few_heads_of_keys_and_no_latent_queries():
    names = {name: sizes for name, *sizes in found("llama-3-8b", "decode", 0)}
    assert names["attn_wq"] == [4096, 8 * 128]
    assert names["attn_wk"] == names["attn_wv"] == [4096, 2 * 128]
    assert names["attn_attn"][:3] == [8, 2, 256]
    lite = [name for name, *_ in found("deepseek-v2-lite", "decode", 1)]
    assert lite[:2] == ["attn_absorb_wkva", "attn_absorb_wq"]


def test_the_vocabulary_is_split_over_the_cluster():
    walk = Names(CoreSetting(load_model("llama-3-8b"), SYSTEM, "decode", 2, 8))
    assert walk.head("x") == "lm_head_head"
    assert walk.found == [("lm_head_head", 4096, 128256 // 8)]
