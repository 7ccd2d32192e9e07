"""Traces of requests: what they must have, and random ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfmodel.base.errors import DataError, FormatError
from perfmodel.serving.requests import (
    RequestTrace,
    format_requests,
    parse_requests,
    random_trace,
    read_requests,
    write_requests,
)
from tests.data import table_of


def test_random_requests_come_at_their_rate() -> None:
    trace = random_trace(20_000, 5.0, (100, 200), 7, seed=3)
    assert len(trace) / trace.arrival[-1] == pytest.approx(5.0, rel=0.03)
    gaps = np.diff(trace.arrival)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)
    assert (trace.input_length.min(), trace.input_length.max()) == (100, 200)
    assert set(trace.output_length.tolist()) == {7}
    again = random_trace(20_000, 5.0, (100, 200), 7, seed=3)
    assert np.array_equal(trace.input_length, again.input_length)


@pytest.mark.parametrize(
    ("arrival", "inputs", "outputs", "message"),
    [
        ([], [], [], "no requests"),
        ([1.0, 0.5], [1, 1], [1, 1], "never fall"),
        ([0.0, np.nan], [1, 1], [1, 1], "finite"),
        ([0.0], [1, 1], [1], "1 arrivals and 2 input_lengths"),
        ([0.0], [1], [0], "output_length should be 1 to"),
    ],
)
def test_what_is_refused(arrival, inputs, outputs, message: str) -> None:
    with pytest.raises(DataError, match=message):
        RequestTrace(np.array(arrival), np.array(inputs), np.array(outputs))


def test_blocks_are_told_for_every_request() -> None:
    with pytest.raises(DataError, match="block_starts"):
        RequestTrace(np.zeros(1), np.ones(1), np.ones(1), np.zeros(1, np.int64), np.arange(3))


def test_random_requests_of_nothing_are_refused() -> None:
    with pytest.raises(DataError, match="above 0"):
        random_trace(0, 1.0, 5, 5)
    with pytest.raises(DataError, match="input_length 9 to 3"):
        random_trace(5, 1.0, (9, 3), 5)


# The first lines of conversation_trace.jsonl, hash_ids of the first shortened to its three blocks.
MOONCAKE = """\
{"timestamp": 0, "input_length": 1325, "output_length": 52, "hash_ids": [46, 47, 48]}
{"timestamp": 3052, "input_length": 1100, "output_length": 26, "hash_ids": [46, 47, 57]}

{"timestamp": 3052, "input_length": 12, "output_length": 1}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""


def test_mooncake() -> None:
    trace = parse_requests(MOONCAKE)
    assert trace.arrival.tolist() == [0.0, 3.052, 3.052]
    assert trace.input_length.tolist() == [1325, 1100, 12]
    assert trace.output_length.tolist() == [52, 26, 1]
    assert trace.block_starts.tolist() == [0, 3, 6, 6]
    assert trace.blocks.tolist() == [46, 47, 48, 46, 47, 57]
    assert trace.block_tokens == 512


def test_azure() -> None:
    trace = parse_requests(AZURE)
    assert trace.arrival == pytest.approx([0.0, 0.052])
    assert trace.input_length.tolist() == [4808, 3180]
    assert trace.output_length.tolist() == [10, 8]


@pytest.mark.parametrize(
    "header",
    [
        "arrival,input,output",
        "arrived_at,num_prefill_tokens,num_decode_tokens",
        "Timestamp,Request tokens,Response tokens",
        "Arrival-Time,ISL,OSL",
    ],
)
def test_spellings(header: str) -> None:
    trace = parse_requests(f"{header}\n0.5,10,2\n1,11,3.0\n")
    assert trace.arrival.tolist() == [0.5, 1.0]
    assert trace.output_length.tolist() == [2, 3]


def test_csv_round_trip(tmp_path: Path) -> None:
    trace = parse_requests(MOONCAKE)
    write_requests(trace, tmp_path / "trace.csv")
    again = read_requests(tmp_path / "trace.csv")
    for name in ("arrival", "input_length", "output_length"):
        assert np.array_equal(getattr(again, name), getattr(trace, name))
    assert format_requests(again) == format_requests(trace)


@pytest.mark.parametrize(
    ("text", "message"),
    table_of(__file__, "files_that_are_refused"),
)
def test_files_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message) as refused:
        parse_requests(text, "t")
    assert "\n" not in str(refused.value)
