"""Tiles of the wafer workload generator."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.wafer.formats.tiling import parse_tiling, read_tiling
from tests.data import WAFER, needed


def test_default_file():
    tiling = read_tiling(needed(WAFER / "configs/tiling.json"))
    assert tiling.tile("MLAKV") == (1, 512, None)
    assert tiling.tile("Linear") == (16, 1024, 64)
    assert tiling.tile("Linear", "decode10_attn_absorb_wo") == (16, 1024, 128)
    with pytest.raises(FormatError, match="no default for 'Matmul'"):
        tiling.tile("Matmul")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"default": {}}', "unknown block 'default'; did you mean defaults"),
        ('{"defaults": []}', "'defaults' should be an object"),
        ('{"defaults": {"Linar": [1]}}', "unknown kind; did you mean Linear"),
        ('{"defaults": {"Linear": [1, 2]}}', "a list of 3 whole numbers above 0"),
        ('{"defaults": {"Linear": [1, 2, -3]}}', "a list of 3 whole numbers above 0"),
        ('{"layers": {"x": [0.5]}}', "a list of whole numbers above 0"),
        ('{"layers": {"x": []}}', "a list of whole numbers above 0"),
    ],
)
def test_wrong(text, said):
    with pytest.raises(FormatError, match=said):
        parse_tiling(text, "t.json")
