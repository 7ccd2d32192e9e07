"""Run what the README and the pages of docs show, and compare what they say comes out.

    python benchmarks/pages.py [--write] [--long] [PAGE.md ...]

Every fenced block that holds ``perfmodel ...`` commands, and every Python block, runs as it is
written, page by page in a folder of its own with the files of docs/samples. Behind ``$ `` stand
commands with their output; without, commands alone. Behind ``# →`` in Python stands a value. In an
output ``…`` stands for anything: on a line of its own for any lines. Comments before a block:

    <!-- not run: REASON -->   not by anything
    <!-- long: REASON -->      only with --long
    <!-- file: NAME -->        written to this file, for the commands that follow
    <!-- exit: CODE -->        of its commands; 0 by default

``--write`` puts in what came out instead, as many lines as there were around a line of ``…``.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "docs/samples"
COLUMNS = 100  # the terminal that the pages show
BLOCK = re.compile(r"(?:^<!-- ([a-z ]+): (.*?) -->\n\n?)?^```(\w*)\n(.*?)^```$", re.M | re.S)
MARKS = ("not run", "long", "file", "exit")
SHELL = re.compile(r"^(\$ |perfmodel )", re.M)
ANYTHING = "…"
ARROW = "# →"


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins, its mark, its language and its text."""

    start: int  # of the text, in the page
    line: int
    mark: str
    value: str
    language: str
    text: str

    @property
    def runs(self) -> bool:
        return self.mark != "not run" and (self.language == "python" or self.is_shell)

    @property
    def is_shell(self) -> bool:
        return self.language in ("", "sh", "console") and SHELL.search(self.text) is not None

    @property
    def exit_code(self) -> int:
        return int(self.value) if self.mark == "exit" else 0


@dataclass(frozen=True)
class Command:
    """A command of a block, and the lines below it: None where no output is shown."""

    text: str
    output: list[str] | None
    start: int  # first line of the output within the block


@dataclass
class Page:
    """What running a page found."""

    path: Path
    faults: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    replacements: list[tuple[int, int, str]] = field(default_factory=list)
    ran: int = 0


def pages() -> list[Path]:
    """Return the README and the pages of docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    for found in BLOCK.finditer(text):
        mark, value, language, body = found.groups()
        line = text.count("\n", 0, found.start(4))
        yield Block(found.start(4), line, mark or "", value or "", language, body)


def commands(text: str) -> Iterator[Command]:
    """Yield the commands of a shell block; lines after a ``$ `` command are its output."""
    session = re.search(r"^\$ ", text, re.M) is not None
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at].removeprefix("$ ") if session else lines[at]
        while line.endswith("\\"):
            at += 1
            line = f"{line[:-1]}{lines[at].strip()}"
        at += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        start = at
        while session and at < len(lines) and not lines[at].startswith("$ "):
            at += 1
        yield Command(line, lines[start:at] if at > start else None, start)


def run_page(path: Path, *, long: bool = False) -> Page:
    """Run the blocks of a page in a new folder, in order."""
    page = Page(path)
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, _inside(Path(folder, "work")):
        for block in blocks(path.read_text(encoding="utf-8")):
            where = f"{path.name}:{block.line + 1}"
            if block.mark and block.mark not in MARKS:
                page.faults.append(f"{where}: unknown mark '{block.mark}'")
            if block.mark == "file":
                Path(block.value).write_text(block.text, encoding="utf-8")
            if block.mark == "not run" or (block.mark == "long" and not long):
                page.left_out.append(f"{where}: {block.mark}: {block.value}")
            elif block.runs and block.language == "python":
                page.ran += 1
                page.faults += [f"{where}: {fault}" for fault in run_python(block.text, names)]
            elif block.runs:
                page.ran += 1
                _run_shell(block, page, where)
    return page


def _run_shell(block: Block, page: Page, where: str) -> None:
    """Run the commands of a block; keep the faults, and what its outputs should be."""
    lines = block.text.splitlines(keepends=True)
    for command in commands(block.text):
        if ANYTHING in without_comment(command.text):
            page.faults.append(f"{where}: cannot run '{command.text}'")
            continue
        code, out, err = run_command(command.text)
        if code != block.exit_code:
            page.faults.append(f"{where}: '{command.text}' ended with {code}: {err.strip()}")
        elif command.output is not None and not matches(command.output, out):
            page.faults.append(f"{where}: '{command.text}' printed\n{out}")
            first = block.start + sum(map(len, lines[: command.start]))
            shown = sum(map(len, lines[command.start : command.start + len(command.output)]))
            page.replacements.append((first, first + shown, shortened(command.output, out)))


def without_comment(text: str) -> str:
    """Return a command without the comment behind it: a # that begins a word outside of quotes."""
    found = re.match(r"""(?:'[^']*'|"[^"]*"|(?<!\s)\#|[^'"#])*""", text)
    return (found[0] if found else text).rstrip()


def _words(text: str) -> list[str]:
    """Return the words of a command, with what joins commands as words of their own."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.commenters = ""
    return list(lexer)


def run_command(text: str) -> tuple[int, str, str]:
    """Run a command as the shell would: exit code, stdout, stderr."""
    text = without_comment(text)
    words = _words(text)
    if "jq" in words and shutil.which("jq") is None:
        text = text[: text.index("| jq")]
        words = words[: words.index("|")]
    if words[0] == "perfmodel" and not any(set(word) <= set("|&;<>()") for word in words if word):
        from click.testing import CliRunner

        from perfmodel.cli.main import cli

        result = CliRunner().invoke(cli, shlex.split(text)[1:], prog_name="perfmodel")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            return 1, result.stdout, repr(result.exception)
        return result.exit_code, result.stdout, result.stderr
    shell = f'perfmodel() {{ {shlex.quote(sys.executable)} -m perfmodel "$@"; }}\n'
    shell += f'python() {{ {shlex.quote(sys.executable)} "$@"; }}\nset -o pipefail\n{text}'
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def run_python(text: str, names: dict[str, Any]) -> list[str]:
    """Run a block statement by statement; return what failed or differed from its comment."""
    comments = {
        token.start[0]: token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    for node in ast.parse(text).body:
        source = ast.unparse(node)
        shown = comments.get(node.end_lineno or 0, "")
        expected = shown.split(ARROW, 1)[1].strip() if ARROW in shown else None
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                if isinstance(node, ast.Expr):
                    value = eval(compile(ast.Expression(node.value), "page", "eval"), names)
                else:
                    exec(compile(ast.Module([node], []), "page", "exec"), names)
                    target = node.targets[0] if isinstance(node, ast.Assign) else None
                    value = names.get(target.id) if isinstance(target, ast.Name) else None
        except Exception as error:
            return [f"'{source}' raised {error!r}"]
        if expected is not None and not shows(expected, value):
            return [f"'{source}' is {value!r}, not {expected}"]
    return []


def shows(expected: str, value: Any) -> bool:
    """Whether a value is what a page says: numbers to as many digits as it gives."""
    plain = value.tolist() if hasattr(value, "tolist") else value
    text = str(plain)
    found, wanted = (re.split(NUMBER, item.replace("_", "")) for item in (text, expected))
    if len(found) != len(wanted):
        return matches([expected], text) or matches([expected], repr(plain))
    return all(
        _same_number(a, b) if i % 2 else a.strip(" '\"") == b.strip(" '\"")
        for i, (a, b) in enumerate(zip(found, wanted, strict=True))
    )


NUMBER = r"(?<![\w.])(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"


def _same_number(found: str, wanted: str) -> bool:
    digits = len(re.sub(r"e.*|\D", "", wanted).lstrip("0")) or 1
    target = float(wanted)
    step = 10.0 ** (math.floor(math.log10(abs(target))) - digits + 1) if target else 10.0**-digits
    return abs(float(found) - target) <= 0.501 * step


def matches(expected: list[str], out: str) -> bool:
    """Whether an output is what a page shows."""
    pattern = ""
    for line in "\n".join(item.rstrip() for item in expected).strip("\n").split("\n"):
        if line == ANYTHING:
            pattern += r"(?:.*\n)*"
        else:
            pattern += re.escape(line).replace(re.escape(ANYTHING), ".*") + r"\n"
    text = "\n".join(line.rstrip() for line in out.strip("\n").split("\n")) + "\n"
    return re.fullmatch(pattern, text) is not None


def shortened(expected: list[str], out: str) -> str:
    """Return of an output what a page showed of it between lines of ``…``.

    As many lines at the start and at the end, and for every passage between two such lines the
    lines that are most like it, numbers aside.
    """
    lines = [line.rstrip() for line in out.strip("\n").split("\n")]
    kept = [line.rstrip() for line in expected]
    while kept and not kept[-1]:
        kept.pop()
    ends = [""] * (len(expected) - len(kept))
    passages: list[list[str]] = [[]]
    for line in kept:
        passages.append([]) if line == ANYTHING else passages[-1].append(line)
    first, last = len(passages[0]), len(passages[-1])
    if len(passages) > 1 and len(lines) > first + last:
        found, place = lines[:first], first
        for passage in passages[1:-1]:
            start = _most_alike(passage, lines[: len(lines) - last], place)
            place = start + len(passage)
            found += [ANYTHING, *lines[start:place]]
        lines = [*found, ANYTHING, *lines[len(lines) - last :]]
    return "".join(f"{line}\n" for line in [*lines, *ends])


def _most_alike(passage: list[str], lines: list[str], place: int) -> int:
    """Return where from `place` on as many lines are most like a passage, numbers aside."""

    def words(line: str) -> str:
        return re.sub(r"[\d.,]+", "0", line)

    def alike(start: int) -> int:
        pairs = zip(passage, lines[start : start + len(passage)], strict=False)
        return sum(words(shown) == words(line) for shown, line in pairs)

    return max(range(place, max(place + 1, len(lines) - len(passage) + 1)), key=alike)


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Go into a folder with the samples, and with the benchmarks that pages name."""
    shutil.copytree(SAMPLES, folder, dirs_exist_ok=True)
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks", target_is_directory=True)
    before = {name: os.environ.get(name) for name in ("COLUMNS", "HOME", "NO_COLOR", "PYTHONPATH")}
    path = os.pathsep.join(filter(None, [*sys.path, before["PYTHONPATH"]]))
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    home = {"COLUMNS": str(COLUMNS), "HOME": str(folder), "NO_COLOR": "1", "PYTHONPATH": path}
    os.environ.update(home, XDG_CACHE_HOME=cache)
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def main() -> int:
    """Run pages, and print what differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("page", nargs="*", type=Path, help="pages; all by default")
    parser.add_argument("--write", action="store_true", help="write what came out into the pages")
    parser.add_argument("--long", action="store_true", help="run the long blocks too")
    options = parser.parse_args()
    faults = 0
    for path in options.page or pages():
        page = run_page(path.resolve(), long=options.long)
        if options.write and page.replacements:
            text = path.read_text(encoding="utf-8")
            for start, end, output in reversed(page.replacements):
                text = text[:start] + output + text[end:]
            path.write_text(text, encoding="utf-8")
        for line in (*page.left_out, *page.faults):
            print(line)
        faults += len(page.faults)
        print(f"{path.name}: {page.ran} blocks ran, {len(page.faults)} differ", file=sys.stderr)
    return 1 if faults and not options.write else 0


if __name__ == "__main__":
    raise SystemExit(main())
