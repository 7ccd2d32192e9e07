"""What the page's controls may ask, and what each is told where it may not."""

from __future__ import annotations

import json
import re

import pytest

from perfmodel.cli.report.server.question import (
    DEFAULTS,
    MOST_LISTED,
    ControlError,
    Offer,
    parse_question,
    read_question,
)

OFFER = Offer(models=("./config.json",))


def test_nothing_said_asks_what_the_page_is_opened_with() -> None:
    found = read_question({}, OFFER)
    assert found.model == DEFAULTS["model"]
    assert found.hardware == ("dgx-h100",)
    assert found.filter is None
    assert found == parse_question(json.dumps(DEFAULTS), OFFER)


def test_limits_become_one_filter() -> None:
    found = read_question({"where": "tp <= 4 or pp == 1", "memory": 60e9}, OFFER)
    assert found.filter == "(tp <= 4 or pp == 1) and memory_total <= 60000000000.0"


def test_files_that_the_server_was_started_with_are_offered_and_no_others() -> None:
    assert read_question({"model": "./config.json"}, OFFER).model == "./config.json"
    with pytest.raises(ControlError, match=r"no '\./other\.json'"):
        read_question({"model": "./other.json"}, OFFER)


@pytest.mark.parametrize(
    ("given", "control", "told"),
    [
        ({"model": "llama-3.1-70"}, "model", "did you mean llama-3.1-70b"),
        ({"model": ""}, "model", "choose one"),
        ({"model": ["llama-3.1-70b"]}, "model", "no '"),
        ({"model": None}, "model", "no 'null'"),
        ({"hardware": []}, "hardware", "choose one or more"),
        ({"hardware": "dgx-h100"}, "hardware", "choose one or more"),
        ({"hardware": ["dgx-h10"]}, "hardware", "did you mean dgx-h100"),
        ({"hardware": ["dgx-h100"] * (MOST_LISTED + 1)}, "hardware", "too many"),
        ({"devices": 0}, "devices", "whole number"),
        ({"devices": 1.5}, "devices", "whole number"),
        ({"devices": True}, "devices", "whole number"),
        ({"devices": "8"}, "devices", "whole number"),
        ({"devices": None}, "devices", "whole number"),
        ({"devices": float("nan")}, "devices", "whole number"),
        ({"devices": 1e300}, "devices", "whole number"),
        ({"sequence_length": -1}, "sequence_length", "whole number"),
        ({"precision": ["fp7"]}, "precision", "no 'fp7'"),
        ({"memory": -1}, "memory", "size in bytes"),
        ({"memory": "60 GB"}, "memory", "size in bytes"),
        ({"where": 3}, "where", "short condition"),
        ({"where": "x" * 3000}, "where", "short condition"),
        ({"kind": "tuning"}, "kind", "no 'tuning'"),
        ({"modle": "x"}, "", "no control 'modle'; did you mean model"),
        ([], "", "JSON object"),
    ],
)
def test_what_a_control_cannot_have_is_said_of_it(given, control, told) -> None:
    with pytest.raises(ControlError, match=re.escape(told)) as caught:
        read_question(given, OFFER)
    assert caught.value.control == control


@pytest.mark.parametrize("text", ["", "{", "[" * 10_000, "nul"])
def test_links_with_no_json_are_refused(text) -> None:
    with pytest.raises(ControlError, match="not JSON"):
        parse_question(text, OFFER)
