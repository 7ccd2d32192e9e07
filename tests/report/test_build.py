"""The page as a file: one, whole, the same for the same results, and nothing that can break out."""

import json
import re
from html.parser import HTMLParser

import pytest

from perfmodel import write_report
from perfmodel.base.errors import DataError
from perfmodel.report.build import LARGEST, POLICY, page_html, program

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
