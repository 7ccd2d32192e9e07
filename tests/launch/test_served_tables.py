"""Tables of options: what is written, what is read, and whose counts are over all ranks."""

from __future__ import annotations

import re

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.launch.served_tables import (
    Option,
    Workers,
    positional,
    rank_degree,
    read_options,
    write_options,
)
from perfmodel.launch.text import parse_arguments

OPTIONS = (
    Option("batch", "max_sequences", per_rank=False),
    Option("pp", "pipeline_parallel"),
    Option("memory", "memory_share", share=True),
    Option("cache", "kv_precision", words={"fp8": "fp8", "e4m3": "fp8", "auto": "stated"}),
)


def test_what_is_left_to_the_engine_is_not_written() -> None:
    assert write_options(Workers("vllm", "", {"pipeline_parallel": 1}), OPTIONS) == {}


def test_counts_over_all_ranks_are_shared_out_and_summed_up() -> None:
    chosen = {"max_sequences": 16, "attention_data_parallel": 4, "kv_precision": "fp8"}
    keys = write_options(Workers("vllm", "", chosen), OPTIONS)
    assert keys == {"batch": 64, "cache": "fp8"}
    settings = parse_arguments("x --batch 64 --cache e4m3 --memory 0.5", "f")
    assert read_options(settings, OPTIONS, 4) == {
        "max_sequences": 16,
        "kv_precision": "fp8",
        "memory_share": 0.5,
    }


def test_a_word_that_leaves_it_to_the_engine_says_nothing() -> None:
    assert read_options(parse_arguments("x --cache auto", "f"), OPTIONS, 1) == {}


def test_ranks_divide_what_is_stated_of_all() -> None:
    settings = parse_arguments("x --tp 8", "f")
    assert rank_degree(settings, "tp", 8, 4) == 2
    with pytest.raises(FormatError, match="a multiple of the 3 data-parallel ranks"):
        rank_degree(settings, "tp", 8, 3)


def test_the_word_behind_a_program() -> None:
    program = re.compile("serve")
    assert positional("run serve 'a/b' --x", program) == "a/b"
    assert positional("run serve \\\n  --x 1", program) == ""
    assert positional("run", program) == ""
