"""The script that compares the wafer workload generator's files with ours: what it counts."""

from __future__ import annotations

import gzip
import json
import shutil

import pytest

from perfmodel.base.errors import DataError
from tests.data import WAFER, needed

KEPT = ("d07", "d12", "p03", "L05", "X02", "X06")


@pytest.fixture
def folder(tmp_path):
    """Some of the reference, with what it needs."""
    (tmp_path / "configs").mkdir()
    for name in ("ref_routings_decode10.npz", "configs/deepseekv3.json", "configs/llama3.json"):
        shutil.copy(needed(WAFER / name), tmp_path / name)
    for name in ("ref_configs.csv", "ref_nodes.csv.gz", "ref_totals.csv"):
        text = (WAFER / name).read_bytes()
        lines = (gzip.decompress(text) if name.endswith("gz") else text).decode().splitlines()
        kept = [line for line in lines if line.split(",")[0] in (*KEPT, "id", "config")]
        (tmp_path / name).write_text("\n".join(kept) + "\n")
    return tmp_path


def test_counts_cells_and_what_fails_there(parity, folder):
    code, out, _ = parity("wse", folder, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["exact"] == document["count"]
    assert document["groups"]["footprints of configurations"]["count"] == 8
    rows = (folder / "ref_nodes.csv.gz").read_text().count("\n") - 1
    assert document["groups"]["cells of nodes"]["count"] == 4 * rows
    assert list(document["limits"]) == ["X02", "X06"]
    assert document["limits"]["X06"].startswith("routing 'identical': 33 tokens")
    assert document["uncovered"] == {}


def test_differences_and_missing_rows_show(script, folder):
    kind = script.load("parity_kinds.wse")
    lines = (folder / "ref_nodes.csv.gz").read_text().splitlines()
    cells = lines[1].split(",")
    cells[6] = str(2 * int(cells[6]))
    (folder / "ref_nodes.csv.gz").write_text("\n".join([lines[0], ",".join(cells), *lines[3:]]))
    document = kind.compare(folder)
    group = document["groups"]["cells of nodes"]
    assert group["count"] - group["exact"] == 1 + 4
    assert group["worst_relative_error"] == 1.0
    assert "X02: key 'pp': 2 stages" in "\n".join(kind.table(document))


def test_an_empty_folder(script, tmp_path):
    with pytest.raises(DataError, match="has none of ref_configs"):
        script.load("parity_kinds.wse").compare(tmp_path)
