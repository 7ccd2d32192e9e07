"""STAGE's command line: its spellings, and what is refused."""

from __future__ import annotations

from dataclasses import fields

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.twins.stage.arguments import (
    SPELLINGS,
    StageArguments,
    stage_arguments,
)
from tests.data import table_of
from tests.workloads.twins.stage.small import SMALL


def test_both_spellings():
    words = SMALL.command_line()
    assert words[:4] == ["--dp", "2", "--tp", "4"]
    given = dict(zip([word.removeprefix("--") for word in words[::2]], words[1::2], strict=True))
    assert stage_arguments(given) == SMALL
    assert stage_arguments({"dp": "2", "weight_sharded": "Yes"}) == StageArguments(
        data_parallel=2, weight_sharded=True
    )
    ours = {item.name: getattr(SMALL, item.name) for item in fields(StageArguments)}
    assert stage_arguments(ours) == SMALL
    assert set(SPELLINGS.values()) == set(ours)
    assert stage_arguments({"num_stacks": 2, "heads": "64"}).layers == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *table_of(__file__, "wrong_arguments_are_refused"),
        ({"seq": float("nan")}, "sequence_length .* is nan"),
        ({"batch": 2**40}, "batch .* is 1099511627776; it should be a whole number from 1 to"),
        ({"batch": "9" * 40}, "should be a whole number"),
        ({"head": None}, "heads .* is None"),
        ({"num_stacks": 10**6}, "it should be from 2 to 10000"),
        ({"batch": 2**30, "seq": 2**30}, "counts beyond 2"),
    ],
)
def test_wrong_arguments_are_refused(change, words):
    with pytest.raises(StrategyError, match=words) as caught:
        stage_arguments(change)
    assert "\n" not in str(caught.value)
