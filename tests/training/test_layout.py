"""Layouts of stages: what users say adds up, or is refused with the place where it does not."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.model.presets import load_model
from perfmodel.training.layout import layout_chunks, stage_layout


@pytest.fixture(scope="module")
def model():
    return load_model("llama-3.1-8b")  # 32 layers


@pytest.mark.parametrize(
    ("text", "virtual", "layers"),
    [
        ("even", 1, (8, 8, 8, 8)),
        ("9,8,8,7", 1, (9, 8, 8, 7)),
        (" 9, 8,8,7 ", 1, (9, 8, 8, 7)),
        ("8,8,8,8", 2, (4,) * 8),  # stages, over their chunks
        ("5,3,4,4,4,4,4,4", 2, (5, 3, 4, 4, 4, 4, 4, 4)),  # chunks as layers run
        ("first=6,last=8", 1, (6, 9, 9, 8)),
        ("last=5", 1, (9, 9, 9, 5)),
        ("first=4,last=8", 2, (2, 5, 5, 4, 2, 5, 5, 4)),
        ("Et*8|(t*8|)*2t*8L", 1, (8, 8, 8, 8)),
        ("E|(t*16|)*2,L", 1, (0, 16, 16, 0)),
    ],
)
def test_layers_of_chunks(model, text, virtual, layers):
    assert stage_layout(model, 4, virtual, text).layers == layers


def test_ends_may_have_chunks_of_their_own(model):
    layout = stage_layout(model, 4, 1, "Et*16||t*16|L")
    assert (layout.embedding, layout.output) == (0, 3)
    assert layout.layers == (16, 0, 16, 0)


def test_megatrons_example_has_its_stages():
    """The layout of DeepSeek-V3 in Megatron-LM's documentation, MTP and loss apart."""
    chunks = layout_chunks("Et*3|(tt|)*29,m|L")
    assert (len(chunks), sum(chunk.count("t") for chunk in chunks)) == (32, 61)
    layout = stage_layout(load_model("deepseek-v3", mtp="stated"), 16, 2, "Et*3|(tt|)*29,m|L")
    assert (layout.embedding, layout.modules, layout.output) == (0, 30, 31)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("8,8,8", "3 stages are listed.*is 4"),
        ("8,8,8,9", "hold 33 layers, and the model has 32"),
        ("first=40", "-8 layers are left for the 3 other stages"),
        ("first=7,last=8", "17 layers are left for the 2 other stages"),
        ("Et*8|t*8|t*8|t*7L", "hold 31 layers"),
        ("t*8|t*8|t*8|t*8L", "0 'E' and the model 1"),
        ("Et*8|t*8|t*8L|t*8", "order in which they run"),
        ("Et*8|(t*8|t*8|t*8L", "no layout"),
        ("evn", "is not 'even'"),
        ("8;8;8;8", "is not 'even'"),
    ],
)
def test_layouts_that_do_not_add_up_are_refused(model, text, what):
    with pytest.raises(StrategyError, match=what):
        stage_layout(model, 4, 1, text)


def test_layers_of_a_stage_divide_over_its_chunks(model):
    with pytest.raises(StrategyError, match="9 layers of stage 0 don't divide over its 2 chunks"):
        stage_layout(model, 4, 2, "9,8,8,7")


@pytest.mark.parametrize(
    ("layout", "stages"),
    [
        ("Et*7|t*8|t*7L", 3),
        ("E|(t|)*3,m|m||L", 8),
        ("Et|(tt|)*30L", 32),
        ("x|y", 0),
        ("(t*9999|)*9999", 0),
    ],
)
def test_stages_of_a_layout_are_counted(layout: str, stages: int) -> None:
    assert len(layout_chunks(layout)) == stages


def test_one_layout_in_numbers_and_letters() -> None:
    model = load_model("llama-3.1-8b")
    assert stage_layout(model, 4, 1, "7,9,9,7") == stage_layout(model, 4, 1, "Et*7|(t*9|)*2t*7L")
