"""Routing as it is said: texts, files of counts, and what is refused."""

from __future__ import annotations

import json

import pytest

from perfmodel.base.errors import DataError
from perfmodel.base.routing import Routing, parse_routing


@pytest.mark.parametrize("suffix", [".json", ".csv"])
def test_counts_are_read_from_files(tmp_path, suffix):
    path = tmp_path / f"counts{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps({"3": [1, 3], "4": [2.0, 2.0]}))
    else:
        path.write_text("layer,expert,count\n3,1,3\n3,0,1\n4,0,2\n4,1,2\n")
    routing = parse_routing(f"empirical:{path}")
    assert routing.counts == ((1.0, 3.0), (2.0, 2.0))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("unifrom", "did you mean uniform"),
        ("power_law_x", "no number"),
        ("power_law_1", "differ from 1"),
        ("dirichlet_-2", "above 0"),
        ("dirichlet_nan", "finite"),
        ("empirical", "needs a file"),
        ("empirical:/nowhere.json", "cannot read"),
    ],
)
def test_bad_texts_are_refused(text, words):
    with pytest.raises(DataError, match=words):
        parse_routing(text)


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.json", "{}"), ("a.json", '{"0": ["x"]}'), ("a.json", "3"), ("a.json", "nonsense"),
     ("a.csv", "expert,count\n1,2\n"), ("a.csv", "a,b\n1,2\n"), ("a.json", "[[1, 2], [1]]"),
     ("a.json", "[-1, 2]")],
)  # fmt: skip
def test_bad_files_are_refused(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError):
        parse_routing(f"empirical:{tmp_path / name}")


def test_bad_routings_are_refused():
    for broken in (
        {"distribution": "uniform", "parameter": 2.0},
        {"distribution": "uniform", "groups": 2, "group_limit": 3},
        {"distribution": "balanced", "groups": 2},
        {"distribution": "empirical"},
        {"distribution": "uniform", "seed": -1},
    ):
        with pytest.raises(DataError):
            Routing(**broken)
    with pytest.raises(DataError, match="63 bits"):
        Routing(seed=2**63)
