"""A page for each command, from the very objects that run: help, examples and every option."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import click
from mkdocs.structure.files import File

from perfmodel.cli.group import commands_by_wing
from perfmodel.cli.main import cli

COMMANDS = commands_by_wing().homes


def on_files(files: Any, config: Any) -> None:
    lines = "\n".join(
        f"| [`perfmodel {name}`]({name}.md) | {line} |" for name, (_, line) in COMMANDS.items()
    )
    index = (
        "# Commands\n\nEvery command with all its options, as `--help` has them. What they share "
        f"is on [the page of the command line](../cli.md).\n\n| command | |\n|---|---|\n{lines}\n"
    )
    files.append(File.generated(config, "commands/index.md", content=index))
    pages: list[Any] = ["commands/index.md"]
    for name in COMMANDS:
        text = "\n".join(page(cli.commands[name], ["perfmodel", name]))
        files.append(File.generated(config, f"commands/{name}.md", content=text))
        pages.append({name: f"commands/{name}.md"})
    put(config["nav"], "Commands", pages)


def put(nav: Any, title: str, pages: list[Any]) -> None:
    """Put pages under a title, wherever it stands."""
    for entry in nav:
        for key, value in entry.items() if isinstance(entry, dict) else ():
            if key == title:
                entry[key] = pages
            elif isinstance(value, list):
                put(value, title, pages)


def page(command: click.Command, path: list[str], level: int = 1) -> Iterator[str]:
    """Yield the lines of a command, and of those in its group."""
    context = click.Context(command, info_name=" ".join(path))
    yield from (f"{'#' * level} `{' '.join(path)}`", "")
    yield from (
        "```text",
        " ".join([" ".join(path), *command.collect_usage_pieces(context)]),
        "```",
        "",
    )
    for title, paragraphs in told(command.help or ""):
        if title == "Examples":
            yield from ("**Examples**", "", "```sh", *paragraphs, "```", "")
        else:
            yield from (line for paragraph in paragraphs for line in (paragraph, ""))
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from page(inner, [*path, name], level + 1)
        return
    for section, records in options(command, context).items():
        yield from (f"{'#' * (level + 1)} {section}", "", "| option | |", "|---|---|")
        yield from (f"| {name} | {text} |" for name, text in records)
        yield ""


def told(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield a help text as paragraphs of prose, and the lines of its examples."""
    examples: list[str] = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text.replace("\b\n", "\n"))):
        block = block.strip("\n")
        if block.startswith("Examples:") or (examples and block.startswith("  ")):
            lines = block.splitlines()[1:] if block.startswith("Examples:") else block.splitlines()
            examples += [
                *([""] if examples else []),
                *textwrap.dedent("\n".join(lines)).split("\n"),
            ]
            continue
        if examples:
            yield "Examples", examples
            examples = []
        if block:
            yield "", [escaped(" ".join(block.split()))]
    if examples:
        yield "Examples", examples


def options(command: click.Command, context: click.Context) -> dict[str, list[tuple[str, str]]]:
    """Return names and texts of options by section, as the help page groups them."""
    found: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(context):
        record = param.get_help_record(context) if isinstance(param, click.Option) else None
        if record is not None:
            section = getattr(param, "section", "Options")
            name = record[0].replace("|", "\\|")
            found.setdefault(section, []).append(
                (f"`{name}`", escaped(" ".join(record[1].split())))
            )
    last = found.pop("Options", None)
    return {**found, **({"Options": last} if last else {})}


def escaped(text: str) -> str:
    """Return plain text that Markdown leaves as it is."""
    return re.sub(r"([\\`*_<>|\[\]$])", r"\\\1", text)
