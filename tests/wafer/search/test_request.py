"""The best mappings of a whole request."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.wafer.request import project_request
from perfmodel.wafer.search.request import search_request

LENGTHS = {"input_length": 1024, "output_length": 32}


def test_no_request_on_the_same_grids_is_faster() -> None:
    found = search_request("llama-3-8b", "wse-2", grid=[300, 360, 420], **LENGTHS)
    assert found.request.fits
    assert found.decode.context == 1056
    assert found.request.request_time == pytest.approx(
        found.request.time_to_first_token + 32 * found.request.time_per_output_token, rel=1e-12
    )
    assert found.request.prefill["latency"].values.item() == found.prefill.latency
    for side in (300, 360, 420):
        plain = project_request(
            "llama-3-8b", "wse-2", prefill_grid=side, decode_grid=side, **LENGTHS
        )
        if plain.fits:
            assert found.request.request_time <= plain.request_time


def test_what_is_refused() -> None:
    with pytest.raises(StrategyError, match="context"):
        search_request("llama-3-8b", "wse-2", grid=[300], input_length=8000, output_length=8000)
