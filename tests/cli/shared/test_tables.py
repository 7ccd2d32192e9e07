"""Rows of results as tables."""

from __future__ import annotations

import pytest

from perfmodel.cli.shared.tables import decimals_for, variable_title
from tests.cli.running import run

PROJECT = "project --model llama-3.1-8b --hardware dgx-h100 --devices 8 --tp 8 --seq-len 4096"


@pytest.mark.parametrize(
    ("values", "decimals"),
    [
        ([1129.0, 1105.0], 0),
        ([1129.2, 1129.4], 1),  # would look like a tie
        ([1129.21, 1129.24], 2),
        ([1129.2101, 1129.2102], 2),  # as good as one
        ([1129.0, 1129.0], 0),  # is a tie
    ],
)
def test_values_that_differ_look_different(values, decimals):
    assert decimals_for(values) == decimals


def test_a_variable_is_named_in_words_and_as_filters_know_it():
    name = "tokens_per_second_per_device"
    assert variable_title(name) == f"tokens per second and device ({name})"
    assert variable_title("system.network.1.bandwidth") == "system.network.1.bandwidth"


@pytest.mark.parametrize(
    ("precision", "peak"), [("bf16", "989.4 TFLOP/s"), ("fp8", "1.979 PFLOP/s")]
)
def test_a_utilization_names_its_peak(precision, peak):
    text = run(*PROJECT.split(), "--global-batch", "1", "--precision", precision).stdout
    assert f" % of {peak} ({precision}); " in text
    assert "1 sequence of 4,096 tokens per step" in text
    explained = run(*PROJECT.replace("project", "explain").split(), "--global-batch", "1").stdout
    assert "rates in % of the bf16 peak, 989.4 TFLOP/s" in explained
