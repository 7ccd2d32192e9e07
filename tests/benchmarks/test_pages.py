"""What the README and the pages of docs show runs as written and prints what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data import DOCS, NO_DOCUMENTS, ROOT

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason=NO_DOCUMENTS)
PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "README.md", *DOCS.rglob("*.md")))


@pytest.fixture
def pages(script: Any) -> Any:
    return script.load("pages")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs_as_written(pages: Any, name: str) -> None:
    page = pages.run_page(ROOT / name)
    assert not page.faults, "\n".join(page.faults)


def test_no_block_that_could_run_goes_unseen(pages: Any) -> None:
    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        seen = "".join(block.text for block in pages.blocks(text) if block.runs or block.mark)
        for line in text.splitlines():
            if line.removeprefix("$ ").lstrip().startswith("perfmodel ") and line.count("`") == 0:
                assert line in seen, f"{name}: {line}"


def written(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


RIGHT = "```\n$ perfmodel model show config.json\n…\n16 layers, …\n…\n```\n"


def test_outputs_are_compared_up_to_what_a_page_leaves_out(pages: Any, tmp_path: Path) -> None:
    page = pages.run_page(written(tmp_path, RIGHT))
    assert (page.faults, page.ran) == ([], 1)
    page = pages.run_page(written(tmp_path, RIGHT.replace("16 layers", "17 layers")))
    (fault,) = page.faults
    assert fault.startswith("page.md:2: 'perfmodel model show config.json' printed")
    assert "16 layers" in fault


def test_a_wrong_output_is_put_right_and_stays_as_short(
    pages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "```\n$ perfmodel model show config.json\nanother\n17 layers\n…\n```\nmore\n"
    path = written(tmp_path, wrong)
    monkeypatch.setattr("sys.argv", ["pages", "--write", str(path)])
    assert pages.main() == 0
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[3].startswith("source: config.json")
    assert lines[4:] == ["…", "```", "more"]
    assert pages.run_page(path).faults == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```\nperfmodel best nothing.nc\n```\n", "ended with 2: perfmodel: error: results file"),
        ("<!-- exit: 2 -->\n```\nperfmodel best nothing.nc\n```\n", None),
        ("<!-- exit: 2 -->\n```\nperfmodel model list\n```\n", "ended with 0"),
        ("```\nperfmodel best … --top 3\n```\n", "cannot run"),
        ("```\nperfmodel model list   # … names\n```\n", None),
        ("```\nperfmodel model show config.json#1\n```\n", "config.json#1"),
        ("```\nperfmodel model show config.json --json | grep -c nothing\n```\n", "ended with 1"),
        ("```python\nlen([1])  # → 1\nlen([1])  # → 2\n```\n", "is 1, not 2"),
        ("```python\nundefined\n```\n", "raised NameError"),
        ("```python\na = 1\n```\ntext\n```python\na + 1  # → 2\n```\n", None),
        ("<!-- sometimes: perhaps -->\n```\nperfmodel model list\n```\n", "unknown mark"),
    ],
)
def test_faults_are_found(pages: Any, tmp_path: Path, text: str, fault: str | None) -> None:
    found = pages.run_page(written(tmp_path, text)).faults
    assert len(found) == (fault is not None), found
    assert fault is None or fault in found[0]


def test_marked_blocks_are_left_out_or_written(pages: Any, tmp_path: Path) -> None:
    page = pages.run_page(
        written(
            tmp_path,
            "<!-- not run: no such program -->\n```\nperfmodel nothing\n```\n"
            "<!-- long: an hour -->\n```\nperfmodel nothing\n```\n"
            "<!-- file: own.toml -->\n```toml\nextends = 'dgx-h100'\n```\n"
            "```\nperfmodel hardware show own.toml\n```\n",
        )
    )
    assert page.faults == []
    assert [line.split(": ", 1)[1] for line in page.left_out] == [
        "not run: no such program",
        "long: an hour",
    ]
    assert page.ran == 1


def test_passages_between_dots_follow_their_numbers(pages: Any) -> None:
    out = "head\nfirst   1.0\n\ncost\nprice   2.5 USD\nenergy  7 J\n\ngroups\nlast\n"
    shown = ["head", "…", "cost", "price   2.4 USD", "…", "last"]
    assert pages.shortened(shown, out) == "head\n…\ncost\nprice   2.5 USD\n…\nlast\n"
    assert pages.shortened(["head", "…"], out) == "head\n…\n"
    assert pages.shortened(["…", "energy  8 J", "…"], out) == "…\nenergy  7 J\n…\n"


@pytest.mark.parametrize(
    ("expected", "value", "same"),
    [
        ("35.1", 35.14, True),
        ("35.1", 35.2, False),
        ("[0.06, 0.03]", np.array([0.06, 0.030000001]), True),
        ("[0.06, 0.03]", np.array([0.06, 0.036]), False),
        ("989.4e12", 9.894e14, True),
        ("2e11", 1e11, False),
        ("0", 0.0, True),
        ("-1.5", 1.5, False),
        ("ring", "ring", True),
        ("Table(…)", "Table(3 rows)", True),
        ("70_553_706_496", 70553706496, True),
    ],
)
def test_numbers_count_to_the_digits_that_a_page_gives(
    pages: Any, expected: str, value: Any, same: bool
) -> None:
    assert pages.shows(expected, value) is same
