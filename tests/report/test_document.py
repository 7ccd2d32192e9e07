"""The document: fit for JSON, complete, within its room."""

import json

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.report.document import NothingSelected, document
from perfmodel.report.packing import unpacked


@pytest.fixture(scope="module")
def found(swept):
    return document([swept])


def test_it_is_plain_json(found):
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_rows_choices_and_figures_are_there(found, swept):
    (it,) = found["populations"]
    assert it["total"] == swept["step_time"].size
    assert it["rows"] == int(np.isfinite(swept["step_time"].values).sum())
    by_name = {column["name"]: column for column in it["columns"]}
    assert by_name["tensor_parallel"]["labels"] == ["1", "2", "4"]
    degrees = unpacked(by_name["tensor_parallel"]["data"])
    assert degrees.size == it["rows"]
    assert set(by_name) >= {"hardware", "step_time", "memory_total", "tensor_parallel"}
    assert {"model", "devices", "framework"} <= {common["name"] for common in it["common"]}
    assert sum(count for _, count in it["left_out"]) == it["total"] - it["rows"]
    assert it["limits"]["memory_total"].keys() == {"dgx-h100", "dgx-b200"}


def test_pipelines_of_the_best_are_pictures(found, swept):
    (it,) = found["populations"]
    assert it["pictures"]
    columns = {column["name"]: column for column in it["columns"]}
    stages = columns["pipeline_parallel"]
    steps = unpacked(it["exact"]["columns"]["step_time"])
    for row, picture in it["pictures"].items():
        degree = stages["labels"][unpacked(stages["data"])[int(row)]]
        panel, marks = picture["panel"], picture["panel"]["marks"]
        assert str(len(panel["y"]["ticks"])) == degree
        assert panel["x"]["high"] == pytest.approx(steps[int(row)], rel=1e-6)
        ends = [unpacked(it["start"]).astype(int) + unpacked(it["length"]) for it in marks]
        assert max(map(max, ends)) == 65535
        for it in marks:
            assert it["start"]["unit"] == it["length"]["unit"] == panel["x"]["high"] / 65535
        passes = sum(it["at"]["count"] for it in marks if "texts" in it)
        assert passes == 2 * int(degree) * picture["chunks"] * picture["micro_batches"]
        for parts in zip(
            *(picture[name] for name in ("work", "communication", "waiting")), strict=True
        ):
            assert sum(parts) == pytest.approx(panel["x"]["high"], rel=1e-6)


def test_files_of_one_kind_stand_side_by_side_and_kinds_apart(swept, served, compared_file):
    found = document([swept, served, swept, compared_file], names=["a", "b", "c", "d"])
    kinds = [it["kind"] for it in found["populations"]]
    assert kinds == ["training", "serving", "comparison"]
    (file,) = [it for it in found["populations"][0]["columns"] if it["name"] == "file"]
    assert file["labels"] == ["a", "c"]
    assert [it["name"] for it in found["provenance"]] == ["a", "b", "c", "d"]


def test_provenance_names_programs_constants_and_their_trust(found):
    (source,) = found["provenance"]
    facts = dict(source["facts"])
    assert facts["perfmodel (version)"] == found["perfmodel"]
    assert facts["layers"] == "32"
    h100, _ = source["hardware"]
    trust = {kernel: level for kernel, level, _ in h100["trust"]}
    assert set(trust.values()) <= set(h100["levels"])
    assert trust["gemm"] == "calibrated"
    constants = {name: (value, level) for name, value, level, _ in h100["constants"]}
    assert constants["host.step_overhead"] == ("0.01 s", "prior")


def test_nothing_selected_says_so(swept):
    with pytest.raises(NothingSelected, match="no strategy has an answer and passes the filter"):
        document([swept], where="tp > 99")


def test_prices_of_what_costs_nothing_are_refused(compared_file):
    with pytest.raises(DataError, match="none of these results costs anything"):
        document([compared_file], costs={"price": 2.0})
    with pytest.raises(DataError, match="one file of results or more"):
        document([])


def test_rows_that_find_no_room_are_left_out_and_it_is_said(swept):
    small = document([swept], room=420_000)
    (it,) = small["populations"]
    (whole,) = document([swept])["populations"]
    size = len(json.dumps(small))
    assert size < 500_000
    assert it["rows"] <= whole["rows"]
    assert (it["rows"] < whole["rows"]) == bool(it["selection"])
