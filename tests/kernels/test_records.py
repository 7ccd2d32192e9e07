"""Record types of kernels: every row of ``records.csv`` is a field with a kind that is known."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import perfmodel.kernels
from perfmodel.kernels.records import record_types

TABLES = sorted(Path(perfmodel.kernels.__file__).parent.rglob("records.csv"))


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.parent.name)
def test_records_have_the_fields_of_their_rows(path: Path) -> None:
    found = record_types(str(path))
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        whole = found[row["kind"]].names if not row["name"] else (row["name"],)
        assert set(whole) <= set(found[row["of"]].names)


def test_a_row_has_a_kind_a_shape_or_all_fields_of_another_record(tmp_path: Path) -> None:
    (tmp_path / "records.csv").write_text(
        "of,name,kind,shape,unit,words\n"
        "INNER,size,float,,B,of a message\nINNER,closes,flag,,,\n"
        "OUTER,,INNER,,,\nOUTER,codes,int,2 3,,\nOUTER,inner,INNER,,,\n",
        encoding="utf-8",
    )
    outer = record_types(str(tmp_path / "module.py"))["OUTER"]
    assert outer.names == ("size", "closes", "codes", "inner")
    assert (outer["size"], outer["closes"]) == (np.float64, np.bool_)
    assert outer["codes"] == np.dtype((np.int64, (2, 3)))
    assert outer["inner"].names == ("size", "closes")
    assert outer.isalignedstruct
