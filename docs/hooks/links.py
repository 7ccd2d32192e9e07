"""What GitHub shows and Python-Markdown would not: links into the repository, titles of files.

Pages are written for both. A link to a page of the site is made one, wherever the page that
holds it came from; one to any other file of the repository becomes its name, since the site has
no such file and the repository no public address.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from gathered import PAGES

FENCE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)\s*$", re.M | re.S)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"(?<!!)\[(?P<text>[^]\[]*)\]\((?P<target>[^)\s]+)\)")
OPENING = re.compile(
    r"(?:^<!-- file: (?P<file>\S+) -->\n\n?)?^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.M | re.S
)
MARK = re.compile(r"^<!-- [a-z][a-z -]*: .*? -->\n", re.M)
ITEM = re.compile(r"^(?P<before>(?!\s*[-*] |\s*\d+\. |\s*$|\|).+)\n(?=[-*] \S)", re.M)
PLACES = {page: name for name, (page, _) in PAGES.items()}  # where gathered pages are


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    root = Path(config.config_file_path).parent
    here = page.file.src_uri
    place = PLACES.get(here, f"docs/{here}")

    def outside(text: str) -> str:
        text = LINK.sub(lambda found: rewritten(found, place, here, root, files), text)
        return ITEM.sub(r"\g<before>\n\n", text)

    return OPENING.sub(titled, outside_of_fences(MARK.sub(kept_mark, markdown), outside))


def kept_mark(found: re.Match[str]) -> str:
    """Keep the comments that name files; the others are for benchmarks/pages.py."""
    return found[0] if found[0].startswith("<!-- file: ") else ""


def outside_of_fences(text: str, change: Any) -> str:
    """Change a text, but not its fenced blocks."""
    parts, at = [], 0
    for found in FENCE.finditer(text):
        parts += [change(text[at : found.start()]), found[0]]
        at = found.end()
    return "".join([*parts, change(text[at:])])


def rewritten(found: re.Match[str], place: str, here: str, root: Path, files: Any) -> str:
    """Return a link of the page at `place` of the repository as one of the page `here`."""
    name, _, anchor = found["target"].partition("#")
    if not name or re.match(r"[a-z]+:", name):
        return found[0]
    target = posixpath.normpath(posixpath.join(posixpath.dirname(place), name))
    uri = PAGES[target][0] if target in PAGES else target.removeprefix("docs/")
    if (target in PAGES or uri != target) and files.get_file_from_path(uri) is not None:
        relative = posixpath.relpath(uri, posixpath.dirname(here) or ".")
        return f"[{found['text']}]({relative}{f'#{anchor}' if anchor else ''})"
    if not (root / target).exists():
        return found[0]  # the strict build names it
    text = found["text"].strip("`")
    return f"`{target}`" if target.endswith(text) else f"{found['text']} (`{target}`)"


def titled(found: re.Match[str]) -> str:
    """Name the file that a block is, and give sessions their language."""
    language, body = found["language"], found["body"]
    if not language and re.search(r"^\$ ", body, re.M):
        language = "console"
    elif not language and body.startswith("perfmodel "):
        language = "sh"
    title = f' title="{found["file"]}"' if found["file"] else ""
    return f"```{language or 'text'}{title}\n{body}```"
