"""``perfmodel model``: the presets that ship, and what a model is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.group import Command, CommandGroup
from perfmodel.cli.shared import completions, options
from perfmodel.cli.shared.models import tuned_reading_options
from perfmodel.cli.shared.printing import heading, print_json, say, table

if TYPE_CHECKING:
    from perfmodel.model.build import ModelSpec


@click.group("model", cls=CommandGroup, short_help="List and show models.")
def model_group() -> None:
    """List the model presets and show what a model is made of.

    A model is a preset, a Hugging Face config.json, or a folder that holds one.

    \b
    Examples:
      perfmodel model list
      perfmodel model show deepseek-v3
    """


@model_group.command("list", cls=Command, short_help="Name the presets.")
@options.json_option
@options.verbosity_options
def list_command(as_json: bool) -> None:
    """Name the model presets with their parameter counts.

    \b
    Examples:
      perfmodel model list
      perfmodel model list --json
    """
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


@model_group.command("show", cls=Command, short_help="Show one model.")
@click.argument("name", metavar="NAME|PATH", shell_complete=completions.complete_models)
@options.options_of("core.model", "seq_len")
@tuned_reading_options
@options.json_option
@options.verbosity_options
def show_command(name: str, seq_len: int, reading: Mapping[str, Any], as_json: bool) -> None:
    """Show the parameters of a model by kind, its layers, and its FLOPs per token.

    FLOPs count forward and backward without recomputation, in the two published
    conventions: causal attention (what is needed) and full-square attention.

    \b
    Examples:
      perfmodel model show llama-3.1-70b
      perfmodel model show deepseek-v3 --seq-len 4096
      perfmodel model show ./config.json --json
    """
    from perfmodel.model.presets import load_model

    document = _document(load_model(name, **reading), seq_len)
    if as_json:
        print_json(document)
    else:
        _print(document)


def _document(model: ModelSpec, seq_len: int) -> dict[str, Any]:
    from perfmodel.kernels.variables import SCHEMA_VERSION
    from perfmodel.model.layers import describe_layer
    from perfmodel.operations.flops import model_flops_per_token

    distinct, index = model.layer_kinds()
    return {
        "schema_version": SCHEMA_VERSION,
        "name": model.name,
        "family": model.family,
        "source": model.source,
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "tied_embeddings": model.tied_embeddings,
        "position_embedding": model.position_embedding,
        "max_positions": model.max_positions,
        "parameters": _parameters(model),
        "flops_per_token": {
            "sequence_length": seq_len,
            "causal": float(model_flops_per_token(model, [seq_len], causal=True)[0]),
            "non_causal": float(model_flops_per_token(model, [seq_len], causal=False)[0]),
        },
        "layers": [
            {"count": index.count(i)} | dataclasses.asdict(layer) | {"text": describe_layer(layer)}
            for i, layer in enumerate(distinct)
        ],
        "mtp_layers": len(model.mtp_layers),
        "adapters": _adapters(model),
        "towers": [
            {
                "name": tower.name,
                "parameters": tower.parameter_count(),
                "layers": len(tower.layers),
                "hidden_size": tower.hidden_size,
            }
            for tower in model.towers
        ],
        "weights": _weights(model),
        "sequence": _sequence(model, seq_len),
        "remarks": list(model.remarks),
    }


def _sequence(model: ModelSpec, tokens: int) -> dict[str, Any]:
    """Return what serving keeps of one sequence, beside the weights."""
    from perfmodel.model.state import sequence_state

    return dataclasses.asdict(sequence_state(model, tokens))


def _weights(model: ModelSpec) -> dict[str, Any]:
    """Return the bytes of the weights as published, and in which formats they are."""
    found = model.weight_bytes()
    quantization = model.quantization
    return {
        "total_bytes": sum(found.values()),
        "bytes": found,
        "formats": quantization.text() if quantization else "",
        "quantization": dataclasses.asdict(quantization) if quantization else None,
    }


def _parameters(model: ModelSpec) -> dict[str, int]:
    """Return the parameters by kind; all but total and active add up to total."""
    from perfmodel.model.build import layer_parameters

    layers = [layer_parameters(layer, model.hidden_size) for layer in model.layers]
    return {
        "total": model.parameter_count(),
        "active": model.active_parameter_count(),
        "embedding": model.embedding_parameters(),
        "attention": sum(layer.attention for layer in layers),
        "recurrence": sum(layer.recurrence for layer in layers),
        "mlp": sum(layer.mlp_dense for layer in layers),
        "experts": sum(layer.experts for layer in layers),
        "router": sum(layer.router for layer in layers),
        "norms": sum(layer.norms for layer in layers) + model.final_norm_parameters(),
        "extra": sum(layer.extra for layer in layers) + model.edge_parameters(),
        "output": model.output_parameters(),
        "encoder": sum(tower.parameter_count() for tower in model.encoders),
        "multi_token_prediction": model.mtp_parameters(),
    }


def _adapters(model: ModelSpec) -> dict[str, int] | None:
    """Return what is trained beside frozen weights; None where all of them are."""
    from perfmodel.operations.adapter_counts import adapter_parameters

    if model.adapters is None:
        return None
    return {"parameters": adapter_parameters(model), "rank": model.adapters.rank}


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
