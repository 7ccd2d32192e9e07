"""Words of selective recomputation: what they mean, and what is wrong with others."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.software.framework import load_framework
from perfmodel.software.modules import (
    MADE_BY,
    MODULES,
    OFFLOADED_POLICIES,
    SAVED,
    SAVING_POLICIES,
    WORDS,
    policy_of,
)


def test_what_is_cheap_depends_on_attention() -> None:
    assert policy_of("cheap", False).modules == {"core_attn"}
    assert policy_of("cheap", True).modules == {
        *("layernorm", "norm_linear", "activation", "moe_act", "mla_up_proj")
    }


@pytest.mark.parametrize("word", MODULES)
def test_a_module_is_repeated_with_what_lies_in_it(word: str) -> None:
    policy = policy_of(word, True)
    assert policy.repeats((word, "inside"))
    assert policy.repeats(("around", word))
    assert not policy.repeats(("around", "inside"))
    assert not policy.repeats(())


def test_policies_save_outputs_that_something_makes() -> None:
    assert set(MADE_BY) == set(SAVED)
    for words in (*SAVING_POLICIES.values(), *OFFLOADED_POLICIES.values()):
        assert set(words.split()) <= set(SAVED)
        assert policy_of(words, True).saved == tuple(words.split())


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("core_atn", "; did you mean core_attn or moe_act?"),
        ("mlp moe_actt", "; did you mean moe_act or core_attn?"),
        ("save_qkv", "; did you mean save_qkv_proj?"),
        ("", ""),
    ],
)
def test_other_words_are_refused(words: str, hint: str) -> None:
    with pytest.raises(StrategyError) as caught:
        load_framework("megatron", selective_recompute=words)
    text = str(caught.value)
    assert "\n" not in text
    assert f"must be words of {', '.join(WORDS)}, not '{words}'" in text
    assert text.endswith(hint)
