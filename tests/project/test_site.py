"""The documentation site: every page has its place, and nothing comes from elsewhere."""

from __future__ import annotations

import importlib
import re
import sys

import pytest

import perfmodel
from tests.data import DOCS, NO_DOCUMENTS, ROOT

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason=NO_DOCUMENTS)
CONFIGURATION = ROOT / "mkdocs.yml"
SITE = ROOT / "site"
in_repository = pytest.mark.skipif(
    not CONFIGURATION.is_file(), reason="an installed package has no site beside the tests"
)


@in_repository
def test_every_page_stands_in_the_navigation():
    named = set(re.findall(r"[\w./-]+\.md", CONFIGURATION.read_text(encoding="utf-8")))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    made = {f"gallery/{path.stem}.md" for path in (DOCS / "gallery").glob("*.py")}
    assert pages | made <= named, "add them to nav in mkdocs.yml"
    gathered = {"index.md", "changelog.md", "contributing.md", "security.md"}
    assert named - pages - made == {*gathered, "commands/index.md"}


def test_the_reference_has_every_public_name():
    text = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("reference/*.md"))
    named = re.findall(r"^::: perfmodel\.(\w+)$", text, re.M)
    assert sorted(named) == sorted(set(perfmodel.__all__) - {"__version__"})


@pytest.fixture
def hook(monkeypatch):
    pytest.importorskip("mkdocs", reason="MkDocs (the extra 'docs') is not installed")
    monkeypatch.syspath_prepend(DOCS / "hooks")

    def load(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load


class Files:
    """Files of a site."""

    def __init__(self, *places):
        self.places = places

    def get_file_from_path(self, place):
        return place if place in self.places else None


@pytest.mark.parametrize(
    ("place", "here", "text", "shown"),
    [
        ("README.md", "index.md", "[cost](docs/cost.md#a)", "[cost](cost.md#a)"),
        ("README.md", "index.md", "[CHANGELOG.md](CHANGELOG.md)", "[Changelog](changelog.md)"),
        ("docs/how-to/x.md", "how-to/x.md", "[cost](../cost.md)", "[cost](../cost.md)"),
        ("docs/cli.md", "cli.md", "[cost.md](cost.md)", "[What will it cost?](cost.md)"),
        ("docs/cli.md", "cli.md", "[it](../pyproject.toml)", "it (`pyproject.toml`)"),
        ("docs/cli.md", "cli.md", "[`pyproject.toml`](../pyproject.toml)", "`pyproject.toml`"),
        ("docs/cli.md", "cli.md", "[a](https://arxiv.org)", "[a](https://arxiv.org)"),
        ("docs/cli.md", "cli.md", "[gone](gone.md)", "[gone](gone.md)"),
        ("docs/x.md", "x.md", "[map](gallery/what-if.py)", "[map](gallery/what-if.md)"),
    ],
)
def test_links_lead_into_the_site_or_become_names(hook, place, here, text, shown):
    links = hook("links")
    files = Files("cost.md", "changelog.md", "gallery/what-if.md")
    found = links.LINK.sub(lambda it: links.rewritten(it, place, here, ROOT, files), text)
    assert found == shown


def test_blocks_say_what_they_are_and_sessions_what_is_typed(hook):
    links = hook("links")
    session = "```\n$ perfmodel a \\\n      --b\nout\n```"
    assert links.OPENING.sub(links.titled, session).startswith("``` {.text .session}\n$ perfmodel")
    file = '<!-- file: own.toml -->\n```toml\nextends = "a"\n```'
    shown = '```toml title="own.toml"\nextends = "a"\n```'
    assert links.OPENING.sub(links.titled, file) == shown
    drawn = links.typed("$ perfmodel a \\\n  --b\nout")
    first, second, third = drawn.split("\n")
    assert first == '<span class="prompt">$ </span><b class="typed">perfmodel a \\</b>'
    assert second == '<b class="typed">  --b</b>'
    assert third == "out"


def test_formulas_become_mathml(hook):
    pytest.importorskip("latex2mathml", reason="the extra 'docs' is not installed")
    formulas = hook("formulas")
    inline = r'<span class="arithmatex">\(a &lt; b\)</span>'
    text = formulas.on_page_content(rf'{inline} <div class="arithmatex">\[\frac{{a}}{{b}}\]</div>')
    assert text.count("<math") == 2
    assert "<mfrac>" in text
    assert "arithmatex" not in text


def test_commands_have_pages_with_their_options(hook):
    from perfmodel.cli.main import cli

    commands = hook("commands")
    text = "\n".join(commands.page(cli.commands["best"], ["perfmodel", "best"]))
    assert text.startswith("# `perfmodel best`\n")
    assert "| `--top N` |" in text
    group = "\n".join(commands.page(cli.commands["kernel"], ["perfmodel", "kernel"]))
    assert "## `perfmodel kernel gemm`" in group
    assert "[" not in commands.escaped("[x>=1] *").replace("\\[", "")


# What a browser loads by itself; links are only followed by readers.
LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=[\"']?(?P<a>[^\"'\s>]+)"
    r"|<link\b(?![^>]*rel=[\"']?(?:canonical|prev|next|alternate))[^>]*\bhref=[\"']?(?P<b>[^\"'\s>]+)"
    r"|url\([\"']?(?P<c>[^\"')]+)|@import\s+[\"'](?P<d>[^\"']+)"
)


@pytest.mark.skipif(not SITE.is_dir(), reason="the site is not built: make docs")
def test_nothing_is_loaded_from_elsewhere():
    pages = [*SITE.rglob("*.html"), *SITE.rglob("*.css")]
    assert len(pages) > 50
    for page in pages:
        text = re.sub(r"<pre.*?</pre>", "", page.read_text(encoding="utf-8"), flags=re.S)
        for found in LOADED.finditer(text):
            target = next(filter(None, found.groups()))
            assert not re.match(r"(https?:)?//", target), f"{page.name}: {target}"
