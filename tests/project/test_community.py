"""What people who join the project read is well-formed and true."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml

from perfmodel import __version__
from tests.data import PYPROJECT, ROOT

pytestmark = pytest.mark.skipif(
    not (ROOT / ".github").is_dir(), reason="an installed package has no repository around it"
)
FORMS = sorted(path.name for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def test_the_citation_names_this_version_and_licence_in_cff_1_2():
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    assert found["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(found)  # what the schema requires
    allowed = {"cff-version", "message", "type", "title", "abstract", "authors", "version"}
    assert set(found) <= allowed | {"license", "keywords"}
    assert found["type"] == "software"
    assert all(set(author) == {"name"} for author in found["authors"])  # entities
    assert str(found["version"]) == __version__
    assert found["license"] == project["license"]


@pytest.mark.parametrize("name", [name for name in FORMS if name != "config.yml"])
def test_forms_have_what_github_asks_of_them(name):
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE" / name).read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    names = [field["id"] for field in form["body"]]
    assert len(names) == len(set(names))
    for field in form["body"]:
        assert field["type"] in ("textarea", "input", "dropdown", "checkboxes")
        assert field["attributes"]["label"]
        if field["type"] in ("dropdown", "checkboxes"):
            assert field["attributes"]["options"]


def test_targets_and_files_that_contributors_are_told_of_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    made = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z]+):.*## ", made, re.M)
    for line in re.findall(r"^make ([a-z ]+?)(?: OPTIONS.*| *#.*)?$", text, re.M):
        assert set(line.split()) <= set(targets), line
    for place in re.findall(r"`((?:perfmodel|hwprofiles|benchmarks|tests|\.ci)/[\w./]+)`", text):
        assert (ROOT / place.rstrip("/")).exists() or place in (
            "perfmodel/a/b.py",
            "tests/a/test_b.py",
        )
