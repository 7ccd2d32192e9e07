"""AIOB computation files: reading, writing, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError
from perfmodel.workloads.formats.aiob import (
    AiobFile,
    AiobTime,
    format_aiob,
    parse_aiob,
    read_aiob,
)
from tests.amount import cases
from tests.data import table_of

# Beginning of AICB's workload/aiob_inputs/Example.txt (aliyun/aicb 23eec3c4).
TEXT = """train_iter:10
Emb:
    time_gpu_max: 857
    time_gpu_min: 782
    time_gpu_avg: 799
layernorm:
    time_gpu_max: 84
    time_gpu_min: 43
    time_gpu_avg: 70
"""
SECTIONS = {"Emb": AiobTime(857, 782, 799), "layernorm": AiobTime(84, 43, 70)}


def test_sections_and_iterations_are_read():
    aiob = parse_aiob(TEXT)
    assert aiob == AiobFile(SECTIONS, train_iter=10)
    assert list(aiob.sections) == ["Emb", "layernorm"]
    assert all(isinstance(time.average, int) for time in aiob.sections.values())


def test_files_of_inference_name_their_phase():
    text = TEXT.replace("train_iter:10", "inference_term:decode")
    assert parse_aiob(text) == AiobFile(SECTIONS, inference_term="decode")
    assert format_aiob(parse_aiob(text)) == text


def test_a_written_file_is_read_back(tmp_path):
    path = tmp_path / "computation.txt"
    path.write_text(format_aiob(AiobFile(SECTIONS, train_iter=10)))
    assert path.read_bytes() == TEXT.encode()
    assert read_aiob(path) == AiobFile(SECTIONS, train_iter=10)


def test_the_example_of_aicb_round_trips_byte_for_byte(development_table):
    path = development_table("aicb/aiob_inputs/Example.txt")
    aiob = read_aiob(path)
    assert len(aiob.sections) == 12
    assert aiob.sections["param_time"] == AiobTime(23746, 16647, 17374)
    assert format_aiob(aiob).encode() == path.read_bytes()


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("\n", "\r\n"),
        TEXT.removesuffix("\n"),
        TEXT.replace("\nlayer", "\n\n\nlayer"),
        TEXT.replace("    time", "\ttime"),
        TEXT.replace("train_iter:10", "train_iter: 10"),
        "\ufeff" + TEXT,
    ],
)
def test_other_white_space_is_read(tmp_path, text):
    path = tmp_path / "computation.txt"
    path.write_bytes(text.encode())
    assert format_aiob(read_aiob(path)) == TEXT


def test_times_may_come_in_any_order_and_with_decimals():
    text = "train_iter:1\nEmb:\n time_gpu_avg: 2.5\n time_gpu_min: 1.125\n time_gpu_max: 3\n"
    aiob = parse_aiob(text)
    assert aiob.sections["Emb"] == AiobTime(3, 1.125, 2.5)
    assert "time_gpu_min: 1.125\n    time_gpu_avg: 2.5\n" in format_aiob(aiob)


def test_small_times_are_written_without_an_exponent():
    text = format_aiob(AiobFile({"Emb": AiobTime(1, 2.5e-5, 1)}, train_iter=1))
    assert "time_gpu_min: 0.000025\n" in text
    assert parse_aiob(text).sections["Emb"].minimum == 2.5e-5


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [*table_of(__file__, "errors_say_the_line"),
("avg: 70", "avg: " + "9" * 40, "line 9: 'time_gpu_avg: 9+' should be a time"),
],
)  # fmt: skip
def test_errors_say_the_line(wrong, right, message):
    assert wrong in TEXT
    with pytest.raises(FormatError, match=message):
        parse_aiob(TEXT.replace(wrong, right), "file")


@pytest.mark.parametrize("text", ["", "\n", "Emb:\n"])
def test_a_file_without_its_first_line_is_refused(text):
    with pytest.raises(FormatError, match="line 1"):
        parse_aiob(text)


def test_files_that_are_too_large_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "long.txt"
    monkeypatch.setattr("perfmodel.workloads.formats.aiob.LARGEST_FILE", 10)
    path.write_text(TEXT)
    with pytest.raises(FormatError, match="more than 10 B"):
        read_aiob(path)


def test_the_writer_refuses_what_no_file_can_hold():
    for bad, message in (
        (AiobFile(SECTIONS), "either of training or of inference"),
        (AiobFile(SECTIONS, 1, "decode"), "either of training or of inference"),
        (AiobFile({"two words": AiobTime(1, 1, 1)}, 1), "should be a section"),
        (AiobFile({"Emb": AiobTime(1, 2, 1)}, 1), "should rise"),
        (AiobFile({"Emb": AiobTime(float("nan"), 1, 1)}, 1), "should be a time"),
        (AiobFile({"Emb": AiobTime(1, -1, 1)}, 1), "should be a time"),
    ):
        with pytest.raises(FormatError, match=message):
            format_aiob(bad)


times = st.tuples(*[st.integers(0, 10**15 - 1)] * 3).map(sorted)


@settings(max_examples=cases(50))
@given(
    st.dictionaries(st.from_regex(r"[A-Za-z_]\w{0,20}", fullmatch=True), times, max_size=8),
    st.integers(1, 10**9 - 1),
)
def test_whatever_is_written_is_read_back(sections, iterations):
    aiob = AiobFile(
        {name: AiobTime(high, low, middle) for name, (low, middle, high) in sections.items()},
        train_iter=iterations,
    )
    assert parse_aiob(format_aiob(aiob)) == aiob
