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
SESSION = re.compile(r'(<div class="[^"]*session[^"]*">.*?<code>)(.*?)(</code>)', re.S)
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
    if uri.startswith("gallery/") and uri.endswith(".py"):
        uri = f"{uri.removesuffix('.py')}.md"
    if (target in PAGES or uri != target) and files.get_file_from_path(uri) is not None:
        relative = posixpath.relpath(uri, posixpath.dirname(here) or ".")
        text = found["text"]
        if text.endswith(posixpath.basename(name)) and name.endswith(".md"):
            text = heading(root / target)  # a reader of the site sees no files
        return f"[{text}]({relative}{f'#{anchor}' if anchor else ''})"
    if not (root / target).exists():
        return found[0]  # the strict build names it
    text = found["text"].strip("`")
    return f"`{target}`" if target.endswith(text) else f"{found['text']} (`{target}`)"


def heading(path: Path) -> str:
    """Return the first heading of a page."""
    found = re.search(r"^# (.*)$", path.read_text(encoding="utf-8"), re.M)
    return found[1] if found else path.stem


def titled(found: re.Match[str]) -> str:
    """Name the file that a block is, and give sessions their language."""
    language, body = found["language"], found["body"]
    title = f' title="{found["file"]}"' if found["file"] else ""
    if language in ("", "console") and re.search(r"^\$ ", body, re.M):
        return f"``` {{.text .session}}\n{body}```"
    if not language and re.match(r"perfmodel |pip |make ", body):
        language = "sh"
    return f"```{language or 'text'}{title}\n{body}```"


def on_page_content(html: str, **_: Any) -> str:
    """Tell what a reader types in a session from what comes out."""
    return SESSION.sub(lambda found: found[1] + typed(found[2]) + found[3], html)


def typed(code: str) -> str:
    """Mark the commands of a session, and the lines on which they go on."""
    lines, goes_on = [], False
    for line in code.split("\n"):
        plain = line.removeprefix("<span></span>")
        if goes_on or plain.startswith("$ "):
            prompt = "" if goes_on else '<span class="prompt">$ </span>'
            goes_on = plain.endswith("\\")
            line = f'{prompt}<b class="typed">{plain.removeprefix("$ ")}</b>'
        lines.append(line)
    return "\n".join(lines)
