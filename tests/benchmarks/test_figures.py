"""The page of figures shows what its script draws."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from perfmodel.cli.main import cli
from tests.data import DOCS, NO_DOCUMENTS

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason=NO_DOCUMENTS)


@pytest.fixture
def figures(script: Any) -> Any:
    return script.load("figures")


def test_every_figure_stands_on_the_page_and_is_small_enough(figures: Any) -> None:
    page = (DOCS / "plots.md").read_text(encoding="utf-8")
    shown = re.findall(r"\(plots/([\w-]+)\.svg\)", page)
    assert sorted(shown) == sorted(figures.FIGURES)
    for name in figures.FIGURES:
        assert (DOCS / "plots" / f"{name}.svg").stat().st_size < figures.LARGEST


def test_every_figure_has_a_kind_known_options_and_results(figures: Any) -> None:
    for words in figures.FIGURES.values():
        kind, file, *options = shlex.split(words)
        command: Any = cli.commands["plot"]
        assert file in figures.RESULTS
        with command.commands[kind].make_context(
            kind, [file, *options], help_option_names=["-h", "--help"]
        ) as context:
            assert context.params["result"] == file
