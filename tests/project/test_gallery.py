"""The notebooks of docs/gallery run as they stand, and say in words what their figures show."""

from __future__ import annotations

import re
import runpy

import pytest

from tests.data import DOCS, NO_DOCUMENTS

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason=NO_DOCUMENTS)
NOTEBOOKS = sorted((DOCS / "gallery").glob("*.py"))
names = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_six():
    assert len(NOTEBOOKS) == 6


@names
def test_a_notebook_runs(path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = []
    monkeypatch.setattr(
        pyplot, "show", lambda: (shown.append(pyplot.get_fignums()), pyplot.close("all"))
    )
    monkeypatch.chdir(path.parent)  # where Jupyter runs it
    runpy.run_path(str(path))
    cells = path.read_text(encoding="utf-8").split("# %%")
    assert len(shown) == sum("plt.show()" in cell for cell in cells)
    assert all(len(figures) == 1 for figures in shown)


@names
def test_a_figure_has_words(path):
    cells = path.read_text(encoding="utf-8").split("# %%")
    drawing = [cell for cell in cells if "plt.show()" in cell]
    assert drawing
    assert all(re.match(r' alt="[^"]{20,}"\n', cell) for cell in drawing)
    assert cells[1].startswith(" [markdown]\n# # ")
