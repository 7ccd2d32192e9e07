"""Core traces and totals among what is compared with the wafer workload generator."""

from __future__ import annotations

import shutil

import pytest

from perfmodel.base.errors import FormatError
from tests.data import WAFER, needed


@pytest.fixture
def folder(tmp_path):
    """The small run's traces and totals, without its tables."""
    (tmp_path / "configs").mkdir()
    for name in ("bincounts.json", "configs/deepseekv3.json", "core_small_4nodes.csv"):
        shutil.copy(needed(WAFER / name), tmp_path / name)
    for name in ("core_0.csv.gz", "core_15.csv"):
        (tmp_path / "out_small/traces_node_0").mkdir(parents=True, exist_ok=True)
        shutil.copy(WAFER / "out_small/traces_node_0" / name, tmp_path / "out_small/traces_node_0")
    return tmp_path


def test_counts_totals_and_traces_that_differ(script, folder):
    kind = script.load("parity_kinds.wse")
    file = folder / "out_small/traces_node_0/core_15.csv"
    file.write_text(file.read_text().replace("0 READ", "0 WRITE", 1))
    table = folder / "core_small_4nodes.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines[:1], *lines[2:]]))
    groups = kind.compare(folder)["groups"]
    assert groups["core traces of out_small"]["count"] == 2
    assert groups["core traces of out_small"]["exact"] == 1
    totals = groups["core totals of out_small"]
    assert totals["count"] == 4 * 271
    assert totals["exact"] == 4 * 270  # the row that is lost
    table.write_text("\n".join([lines[0], lines[1].replace("48", "many")]))
    with pytest.raises(FormatError, match=r"core_small_4nodes.csv:2"):
        kind.compare(folder)
