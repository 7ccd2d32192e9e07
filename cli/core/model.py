"""``perfmodel model``: the presets that ship, and what a model is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import click

from perfmodel.cli.group import CommandGroup
from perfmodel.cli.shared import completions, options
from perfmodel.cli.shared.models import tuned_reading_options
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import heading, print_json, say, table


@click.group("model", **page("core", "model", "List and show models.", CommandGroup))
def model_group() -> None:
    """List the model presets and show what a model is made of."""


@model_group.command("list", **page("core", "model list", "Name the presets."))
@options.json_option
@options.verbosity_options
def list_command(as_json: bool) -> None:
    """Name the model presets with their parameter counts."""
    from perfmodel.base.units import format_si
    from perfmodel.kernels.variables import SCHEMA_VERSION
    from perfmodel.model.presets import list_models

    summaries = list_models()
    if as_json:
        models = [dataclasses.asdict(summary) for summary in summaries]
        print_json({"schema_version": SCHEMA_VERSION, "models": models})
        return
    rows = [
        [
            summary.name,
            summary.family,
            format_si(float(summary.parameters), digits=4),
            format_si(float(summary.active_parameters), digits=4),
            next(iter((*summary.hub, *summary.aliases)), ""),
        ]
        for summary in summaries
    ]
    headers = ["preset", "family", "parameters", "active", "on the Hub"]
    click.echo(table(headers, rows, left=(0, 1, 4)))


@model_group.command("show", **page("core", "model show", "Show one model."))
@click.argument("name", metavar="NAME|PATH", shell_complete=completions.complete_models)
@options.options_of("core.model", "seq_len")
@tuned_reading_options
@options.json_option
@options.verbosity_options
def show_command(name: str, seq_len: int, reading: Mapping[str, Any], as_json: bool) -> None:
    """Show the parameters of a model by kind, its layers, and its FLOPs per token."""
    from perfmodel.analysis.model_facts import model_facts
    from perfmodel.kernels.variables import SCHEMA_VERSION
    from perfmodel.model.presets import load_model

    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    document |= model_facts(load_model(name, **reading), seq_len)
    if as_json:
        print_json(document)
    else:
        _print(document)


def _print(document: dict[str, Any]) -> None:
    from perfmodel.base.units import format_si

    click.echo(heading(f"{document['name']} ({document['family']})"))
    if document["source"]:
        click.echo(f"source: {document['source']}")
    click.echo(
        f"{document['num_layers']} layers, hidden size {document['hidden_size']:,}, "
        f"vocabulary {document['vocab_size']:,}"
        + (", tied embeddings" if document["tied_embeddings"] else "")
        + f", positions: {document['position_embedding']}"
    )
    for layer in document["layers"]:
        click.echo(f"  {layer['count']:>4} × {layer['text']}")
    if document["mtp_layers"]:
        click.echo(f"  {document['mtp_layers']:>4} × multi-token-prediction module")
    click.echo()
    total = document["parameters"]["total"]
    rows = [
        [kind.replace("_", " "), f"{count:,}", f"{100 * count / total:.2f} %"]
        for kind, count in document["parameters"].items()
        if count
    ]
    click.echo(table(["parameters", "", "of total"], rows))
    if document["adapters"]:
        trained = document["adapters"]["parameters"]
        click.echo(f"\ntrained in adapters: {trained:,} ({100 * trained / total:.2f} % of total)")
    weights = document["weights"]
    click.echo()
    formats = (
        f", {weights['formats']}, the rest in 16 bits" if weights["formats"] else " in 16 bits"
    )
    say(f"weights as published: {format_si(weights['total_bytes'], 'B', 4)}{formats}", 4)
    if weights["formats"]:
        say("  (what serving holds; training keeps the precision of its strategy)", 4)
    flops = document["flops_per_token"]
    click.echo()
    click.echo(f"FLOPs per token, forward and backward, {flops['sequence_length']:,} tokens")
    click.echo(f"  causal attention       {format_si(flops['causal'], 'FLOP', 4)}")
    click.echo(f"  full-square attention  {format_si(flops['non_causal'], 'FLOP', 4)}")
    _print_sequence(document["sequence"])
    for text in document["remarks"]:
        say(f"note: {text}", 6)


def _print_sequence(found: dict[str, Any]) -> None:
    """Print what serving keeps of one sequence."""
    from perfmodel.base.units import format_size

    click.echo()
    click.echo(f"kept of a sequence while it is generated ({found['precision']})")
    first, beyond = found["per_token"], found["per_token_beyond_windows"]
    text, size = f"{format_size(first)} per token", format_size(found["cache"])
    if beyond < first:
        text += f", {format_size(beyond)} beyond windows"
    click.echo(f"  keys and values        {text}; {size} at {found['tokens']:,} tokens")
    if found["recurrent"]:
        click.echo(f"  recurrent states       {format_size(found['recurrent'])}, at any length")
