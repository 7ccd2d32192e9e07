"""Serving engines: releases, sources, and what is refused."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.base.fields import facts_of
from perfmodel.software.engine import ENGINES, SOURCES, load_engine, release_key


def test_a_release_is_the_newest_that_is_no_newer_than_asked() -> None:
    for engine in {item.engine for item in ENGINES.values()}:
        releases = [item for item in ENGINES.values() if item.engine == engine]
        for item in releases:
            assert load_engine(engine, item.since) == item
        assert release_key(load_engine(engine).since) == max(
            release_key(item.since) for item in releases
        )


def test_engines_answer_to_their_full_names() -> None:
    assert load_engine("TensorRT-LLM").engine == "trtllm"
    assert load_engine("tensorrt-llm-1.0").engine == "trtllm"


def test_numbers_of_a_release_are_read() -> None:
    assert release_key("0.12.0rc1") == (0, 12, 0)
    assert release_key("v1.2.0rc6.post2") == (1, 2, 0)
    assert release_key("nightly-5b8c30d") == ()


def test_every_fact_has_a_source() -> None:
    for name, item in ENGINES.items():
        facts = facts_of(type(item)).items()
        stated = {key for key, it in facts if it.required or getattr(item, key) != it.default}
        assert stated <= set(SOURCES[name])


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("vlm", {}, "did you mean vllm"),
        ("vllm-new", {}, "a release is numbers, as in vllm-0"),
        ("vllm", {"token_budgets": 1}, "did you mean token_budget"),
        ("vllm", {"token_budget": 0}, "whole number of at least 1"),
    ],
)
def test_what_is_unknown_or_impossible_is_refused(
    name: str, changes: dict[str, int], message: str
) -> None:
    with pytest.raises(StrategyError, match=message):
        load_engine(name, **changes)


def test_a_changed_fact_is_in_the_name() -> None:
    engine = load_engine("vllm", pass_host=0.25, token_budget=8191)
    assert engine.name.endswith("[token_budget=8191,pass_host=0.25]")
    assert load_engine(engine, token_budget=1).name.endswith("[token_budget=1,pass_host=0.25]")
