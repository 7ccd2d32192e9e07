"""Options from a TOML file (``--config``).

::

    model = "llama-3.1-70b"
    hardware = ["dgx-h100", "dgx-b200"]
    devices = 1024
    seq-len = 8192
    global-batch = 2048
    tp = [1, 2, 4, 8]

    [set]
    device.memory.bandwidth = 4.8e12

    [sweep]
    "system.network.1.bandwidth" = "25e9:400e9:16"
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from perfmodel.base.errors import FormatError, did_you_mean
from perfmodel.base.files import read_toml, user_path


def read_config_file(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Make the file's values the defaults of the command that runs.

    Raises
    ------
    FormatError
        The file is missing, is not TOML, or names an option that the command lacks.
    """
    if value is None:
        return
    if ctx.default_map:
        raise click.UsageError("--from and --config exclude each other", ctx)
    options = {
        name.lstrip("-").replace("-", "_"): other
        for other in ctx.command.params
        if isinstance(other, click.Option) and other.name != param.name
        for name in (*other.opts, *other.secondary_opts)
        if name.startswith("--")
    }
    ctx.default_map = {}
    for key, content in read_toml(user_path(value)).items():
        name = key.replace("-", "_")
        if name not in options:
            known = [key.replace("_", "-") for key in options]
            raise FormatError(
                f"{value}: '{ctx.command_path}' has no option '{key}'{did_you_mean(key, known)}"
            )
        target = options[name]
        if target.name in ctx.default_map:
            raise FormatError(f"{value}: '{key}' is there twice, under two names")
        ctx.default_map[target.name or ""] = _written(target, content, f"{value}: '{key}'")


def _written(target: click.Option, content: Any, where: str) -> Any:
    """Return a value as the command line would write it."""
    if isinstance(content, Mapping):
        if target.name not in ("settings", "swept"):
            raise FormatError(f"{where} should be a value or a list, not a table")
        return [f"{path}={_text(item, where)}" for path, item in _leaves(content, "")]
    if target.multiple:
        return [
            _text(item, where) for item in (content if isinstance(content, list) else [content])
        ]
    if target.is_flag:
        if not isinstance(content, bool):
            raise FormatError(f"{where} should be true or false")
        return content
    return _text(content, where)


def _leaves(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, item in table.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(item, Mapping):
            yield from _leaves(item, path)
        else:
            yield path, item


def _text(content: Any, where: str) -> str:
    if isinstance(content, list):
        return ",".join(_text(item, where) for item in content)
    if isinstance(content, bool):
        return str(content).lower()
    if isinstance(content, int | float | str) and "\0" not in str(content):
        return str(content)
    raise FormatError(f"{where} should be text, a number, true or false, or a list of them")
