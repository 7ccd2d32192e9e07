"""Requests end to end."""

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.wafer.project import project_wafer
from perfmodel.wafer.request import project_request


def test_an_answer_is_the_sum_of_its_tokens():
    found = project_request(
        "llama-3-8b", "wse-2", input_length=2000, output_length=300, prefill_grid=600,
        decode_grid="360x300", head=False,
    )  # fmt: skip
    tokens = project_wafer(
        "llama-3-8b", "wse-2", grid="360x300", context=range(2001, 2301), head=False
    )
    prompt = project_wafer(
        "llama-3-8b", "wse-2", grid=600, context=2000, phase="prefill", head=False
    )
    answer = tokens["latency"].values.sum()
    assert found.time_to_first_token == prompt["latency"].values[0, 0, 0]
    assert found.time_per_output_token * 300 == pytest.approx(answer, rel=1e-12)
    assert found.tokens_per_second == pytest.approx(
        300 / (prompt["latency"].values[0, 0, 0] + answer)
    )


def test_lengths_between_which_a_token_is_linear():
    chip = project_request("llama-3.1-8b", "n300", input_length=128, output_length=600, batch=1)
    tokens = project_wafer("llama-3.1-8b", "n300", context=range(129, 729))
    assert chip.time_per_output_token == pytest.approx(np.mean(tokens["latency"].values), rel=1e-4)


@pytest.mark.parametrize("lengths", [(0, 1), (1, 0), (2**40, 1), (1.5, 2)])
def test_lengths_that_mean_nothing(lengths):
    with pytest.raises(StrategyError, match="_length: a whole number"):
        project_request("llama-3-8b", "wse-2", input_length=lengths[0], output_length=lengths[1])


def test_one_value_of_every_field():
    with pytest.raises(StrategyError, match="one value"):
        project_request("llama-3-8b", "wse-2", input_length=9, output_length=9, batch=[1, 2])
