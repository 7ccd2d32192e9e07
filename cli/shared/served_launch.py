"""Deployments that a command starts, as options."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.base.errors import FormatError
from perfmodel.base.files import user_path
from perfmodel.cli.shared import options
from perfmodel.cli.shared.printing import remark

SERVERS = ("vllm", "sglang", "tensorrt-llm")
"""Engines that a launch command can be written for."""


def read_server_file(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Make what a server's command says the defaults of the command that runs.

    Raises
    ------
    FormatError
        It starts no server, or one of its options is wrong.
    """
    if value is None:
        return
    if ctx.default_map:
        raise click.UsageError("--from and --config exclude each other", ctx)

    from perfmodel.launch.served import read_served
    from perfmodel.model.presets import find_preset

    workers = read_served(user_path(value))
    known = {name: param for param in ctx.command.params if (name := param.name)}
    stated: dict[str, Any] = {"engine": workers.engine, **workers.fields}
    if "precision" in known and workers["weight_precision"]:
        stated["precision"] = workers["weight_precision"]
    if length := workers["draft_length"]:
        remark(f"{value}: drafts of {length} tokens; --speculative says how many are taken")
    if workers.part:
        raise FormatError(
            f"{value}: a {workers.part} worker of two pools; one pool is needed, "
            "or --prefill and --decode in place of the file"
        )
    if workers.model and find_preset(workers.model) is not None:
        stated["model"] = workers.model
    elif workers.model:
        remark(f"{value}: no preset of {workers.model}; --model says which model it is")
    ctx.default_map = {
        name: [str(value)] if getattr(known[name], "multiple", False) else str(value)
        for name, value in stated.items()
        if name in known
    }
    for text in workers.remarks:
        remark(f"{value}: {text}")


from_server_option = options.options_of(
    "shared.served_launch", "from", is_eager=True, expose_value=False, callback=read_server_file
)
