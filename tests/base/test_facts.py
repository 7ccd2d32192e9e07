"""Files of facts: what is read, and how wrong files are answered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.base.facts import Record, read_folder
from perfmodel.base.fields import fact, facts_of
from tests.data import table_of


@dataclass(frozen=True)
class Loop:
    """A subject with every kind of value."""

    name: str
    style: str = fact("how it walks", choices=("rows", "columns"))
    stages: float = fact("steps under way", positive=True)
    depth: int = fact("levels", minimum=1)
    fused: bool = fact("one kernel")
    tiles: tuple[tuple[float, ...], ...] = fact("rows and columns", "B", shape=(0, 2))
    formats: tuple[str, ...] = fact("precisions", choices=("bf16", "fp8"), default=())
    extra: float | None = fact("what may be left out", default=None)


WHOLE = """
style = "rows"
stages = 3
depth = 2
fused = true
tiles = [[16, 32.0], [64, 64]]

[source]
style = "manual, p. 1"
stages = "manual, p. 2"
depth = "manual, p. 3"
fused = "manual, p. 4"
tiles = "manual, p. 5"
"""


def read(folder: Path, subjects: dict[str, type] | None = None, **texts: str) -> dict[str, Record]:
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return read_folder(folder, subjects or {"": Loop}, HardwareError)


def test_values_come_in_the_kinds_of_their_attributes(tmp_path):
    found = read(tmp_path, loop=WHOLE)["loop"].facts[""]
    assert found == Loop("loop", "rows", 3.0, 2, True, ((16.0, 32.0), (64.0, 64.0)))
    assert type(found.stages) is float
    assert type(found.depth) is int
    assert hash(found) == hash(Loop("loop", "rows", 3.0, 2, True, ((16.0, 32.0), (64.0, 64.0))))


def test_a_file_refines_another(tmp_path):
    text = 'extends = "loop"\nstages = 4\n[source]\nstages = "measured"'
    records = read(tmp_path, loop=WHOLE, tuned=text)
    assert records["tuned"].facts[""].stages == 4.0
    assert records["tuned"].facts[""].style == "rows"
    assert records["tuned"].facts[""].name == "tuned"
    assert records["tuned"].source["stages"] == "measured"
    assert records["tuned"].source["style"] == "manual, p. 1"
    assert records["loop"].facts[""].stages == 3.0


def test_files_are_listed_by_rank_then_by_name(tmp_path):
    records = read(tmp_path, a=WHOLE, c=f"rank = 2\n{WHOLE}", b=f"rank = 1\n{WHOLE}")
    assert list(records) == ["b", "c", "a"]


def test_a_file_may_hold_several_subjects(tmp_path):
    table = WHOLE.replace("[source]", "").split("\n\n")[0]
    sources = "\n".join(
        f'"loop.{key}" = "manual"' for key in ("style", "stages", "depth", "fused", "tiles")
    )
    records = read(
        tmp_path, {"loop": Loop, "other": Loop}, one=f"[loop]{table}\n[source]\n{sources}"
    )
    assert set(records["one"].facts) == {"loop"}
    assert records["one"].facts["loop"].depth == 2


@pytest.mark.parametrize(
    ("old", "new", "text"),
    table_of(__file__, "wrong_files_get_one_clear_line"),
)  # fmt: skip
def test_wrong_files_get_one_clear_line(tmp_path, old, new, text):
    assert old in WHOLE
    with pytest.raises(HardwareError) as caught:
        read(tmp_path, loop=WHOLE.replace(old, new, 1))
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "loop.toml" in str(caught.value)


def test_what_a_file_must_say_is_missed(tmp_path):
    silent = WHOLE.replace("fused = true", "").replace('fused = "manual, p. 4"', "")
    with pytest.raises(HardwareError, match=r"loop.toml: 'fused' is missing: one kernel"):
        read(tmp_path, loop=silent)


def test_unknown_subjects_are_named(tmp_path):
    with pytest.raises(HardwareError, match="unknown key 'lop'; did you mean loop"):
        read(tmp_path, {"loop": Loop}, one="[lop]")
    with pytest.raises(HardwareError, match="'loop' must be a table, not 3"):
        read(tmp_path, {"loop": Loop}, one="loop = 3")


def test_text_that_is_not_utf_8_is_refused(tmp_path):
    (tmp_path / "loop.toml").write_bytes(b'title = "\xff"')
    with pytest.raises(HardwareError, match=r"loop.toml: not UTF-8 text"):
        read(tmp_path)


def test_declared_facts_leave_the_name_out():
    facts: dict[str, Any] = facts_of(Loop)
    assert "name" not in facts
    assert facts["tiles"].depth == 2
    assert not facts["extra"].required
