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
        ({"dp": 0}, r"data_parallel \(dp\) is 0; it should be a whole number from 1"),
        ({"tp": -2}, r"tensor_parallel \(tp\) is -2"),
        ({"seq": 1.5}, r"sequence_length \(seq\) is 1.5"),
        ({"seq": float("nan")}, "sequence_length .* is nan"),
        ({"batch": True}, r"batch \(batch\) is True"),
        ({"batch": 2**40}, "batch .* is 1099511627776; it should be a whole number from 1 to"),
        ({"batch": "12e3"}, r"batch \(batch\) is '12e3'"),
        ({"batch": "9" * 40}, "should be a whole number"),
        ({"head": None}, "heads .* is None"),
        ({"weight_sharded": 1}, "weight_sharded is '1'; it should be true or false"),
        ({"weight_sharded": "maybe"}, "weight_sharded is 'maybe'; it should be true or false"),
        ({"num_stacks": 1}, r"layers \(num_stacks\) is 1; it should be from 2 to"),
        ({"num_stacks": 10**6}, "it should be from 2 to 10000"),
        ({"pp": 35}, "32 layers and two embeddings fill at most 34 stages"),
        ({"dp": 3}, r"batch \(batch\) is 1024; it should be divisible by data_parallel \(dp\) = 3"),
        ({"sp": 3}, "sequence_length .* should be divisible by sequence_parallel"),
        ({"tp": 3}, "hidden_size .* should be divisible by tensor_parallel"),
        ({"tp": 64, "dff": 4100}, "feed_forward_size .* should be divisible by tensor_parallel"),
        ({"head": 1000}, "hidden_size .* is 25600; it should be divisible by heads"),
        ({"dp": 1024, "tp": 1024}, "1048576 devices; at most 65536 are covered"),
        ({"dp": 1024, "pp": 2, "num_stacks": 8192}, "nodes; at most 20000000 are covered"),
        ({"batch": 2**30, "seq": 2**30}, "counts beyond 2"),
        (
            {"batch": 1, "seq": 1, "din": 3, "dmodel": 64, "dff": 64, "head": 64, "tp": 64},
            "the tokens before the input embedding, 3 elements, should be divisible by",
        ),
        (
            {"weight_sharded": True, "dp": 512, "dmodel": 4, "dff": 4, "head": 2, "din": 1},
            r"a weight of hidden_size × input_size, 4 elements, .* = 512 \(weight_sharded\)",
        ),
        ({"dpp": 2}, "unknown argument 'dpp'; did you mean"),
        ({"dp": 2, "data_parallel": 2}, "'data_parallel' is given twice"),
    ],
)
def test_wrong_arguments_are_refused(change, words):
    with pytest.raises(StrategyError, match=words) as caught:
        stage_arguments(change)
    assert "\n" not in str(caught.value)
