"""The page of figures shows what its script draws."""

from __future__ import annotations

import re
import shlex

import pytest

from perfmodel.cli.main import cli
from tests.data import ROOT

figures = pytest.importorskip("benchmarks.figures") if (ROOT / "benchmarks").is_dir() else None
pytestmark = pytest.mark.skipif(figures is None, reason="an installed package has no benchmarks")


def test_every_figure_stands_on_the_page_and_is_small_enough():
    page = (ROOT / "docs/plots.md").read_text(encoding="utf-8")
    shown = re.findall(r"\(plots/([\w-]+)\.svg\)", page)
    assert sorted(shown) == sorted(figures.FIGURES)
    for name in figures.FIGURES:
        path = ROOT / "docs/plots" / f"{name}.svg"
        assert path.stat().st_size < figures.LARGEST


def test_every_figure_has_a_kind_known_options_and_results():
    for words in figures.FIGURES.values():
        kind, file, *options = shlex.split(words)
        command = cli.commands["plot"].commands[kind]
        assert file in figures.RESULTS
        with command.make_context(kind, [file, *options]) as context:
            assert context.params["result"] == file
