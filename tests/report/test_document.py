"""The document: fit for JSON, complete, within its room."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from perfmodel import write_report
from perfmodel.base.errors import DataError
from perfmodel.report.document import LARGEST, NothingSelected, document
from perfmodel.report.page_text import POLICY, page_html, program
from tests.report.unpacking import unpacked


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


NASTY = "</script><script>alert(1)</script><!-- '\"&\u2028"


class Parts(HTMLParser):
    """Scripts, styles and texts of a page as a browser tells them apart."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.title, self.attributes, self._in = [], "", [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._in = tag
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._in = ""

    def handle_data(self, data):
        if self._in == "script":
            self.scripts[-1] += data
        if self._in == "title":
            self.title += data


def test_a_report_is_one_file_that_says_what_is_in_it(swept_file, tmp_path):
    path = tmp_path / "report.html"
    said = write_report(swept_file, path)
    text = path.read_text(encoding="utf-8")
    assert said["bytes"] == path.stat().st_size < LARGEST
    assert said["populations"][0]["rows"] == said["populations"][0]["exact"] > 10
    assert list(tmp_path.iterdir()) == [path]
    parts = Parts(text)
    data, script = parts.scripts
    assert json.loads(data)["title"] == parts.title
    assert script == program()


def test_nothing_is_loaded_from_anywhere(swept):
    from perfmodel.report.document import document

    parts = Parts(page_html(document([swept])))
    assert ("meta", "content", POLICY) in parts.attributes
    assert "default-src 'none'" in POLICY
    loading = {"src", "srcset", "action", "data", "poster"}
    assert not [it for it in parts.attributes if it[1] in loading]
    assert [it[2] for it in parts.attributes if it[1] == "href"] == ["#results"]
    own = program()
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|importScripts|eval)\s*\(", own)
    assert "innerHTML" not in own
    assert "document.write" not in own


def test_the_same_results_give_the_same_bytes(swept_file, compared_file, tmp_path):
    paths = [tmp_path / name for name in ("a.html", "b.html")]
    for path in paths:
        write_report([swept_file, compared_file], path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_names_and_titles_stay_text(compared_file, tmp_path):
    evil = tmp_path / "errors.csv"
    evil.write_text(compared_file.read_text().replace("<b>x</b>, large", NASTY.replace('"', '""')))
    path = tmp_path / "report.html"
    write_report(evil, path, title=NASTY)
    parts = Parts(path.read_text(encoding="utf-8"))
    assert len(parts.scripts) == 2
    assert parts.title == NASTY
    data = json.loads(parts.scripts[0])
    assert data["title"] == NASTY
    (model,) = [it for it in data["populations"][0]["columns"] if it["name"] == "model"]
    assert NASTY.replace("\u2028", "") in [it.replace("\u2028", "") for it in model["labels"]]


@pytest.mark.parametrize("name", ["report.nc", "report", "no/where/report.html"])
def test_places_that_cannot_be_written_are_refused_before_anything_is_read(tmp_path, name):
    with pytest.raises(DataError, match="cannot write"):
        write_report(tmp_path / "missing.nc", tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_the_old_page(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    (tmp_path / "broken.nc").write_bytes(b"nothing")
    with pytest.raises(DataError):
        write_report(tmp_path / "broken.nc", path)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_server_may_add_its_own():
    assert "<title>a?b" in page_html({"title": "a\udc8bb"})
    text = page_html(None, policy="default-src 'self'", controls="<p>mine</p>", script="//mine")
    assert "<p>mine</p>" in text
    parts = Parts(text)
    assert ("meta", "content", "default-src 'self'") in parts.attributes
    assert parts.scripts[0] == ""
    assert parts.scripts[1].endswith("//mine")


def test_modules_run_after_those_that_they_import():
    text = program()
    for name in re.findall(r"const \{[^}]*\} = \$(\w+);", text):
        assert text.index(f"const ${name} = ") < text.index(f"}} = ${name};")
    assert not re.search(r"^\s*(import|export) ", text, re.MULTILINE)
