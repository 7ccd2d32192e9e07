"""Keys with lines: where they stand, and that each is given once."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.base.located import Located


def test_keys_have_lines_and_stand_once() -> None:
    keys = Located("run.yaml")
    keys.put("a.b", 1, 3)
    keys.put("c", 2, 0)
    assert (keys.where("a.b"), keys.where("c"), keys.where("d")) == ("run.yaml:3",) + (
        "run.yaml",
    ) * 2
    with pytest.raises(FormatError) as caught:
        keys.put("a.b", 5, 9)
    assert str(caught.value) == (
        "run.yaml:9: key 'a.b' is given twice (first on line 3); it should stand once"
    )
