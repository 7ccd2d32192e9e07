"""``perfmodel size``: the fewest devices that serve a rate of requests within limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from perfmodel.base.served_fields import LOAD_FIELD_BY_NAME
from perfmodel.cli.core import serve_options as served
from perfmodel.cli.core.serve import check_points
from perfmodel.cli.core.serve_output import point_options
from perfmodel.cli.shared import options
from perfmodel.cli.shared.inputs import load_engines, load_rows, of_hardware
from perfmodel.cli.shared.launch_file import from_server_option
from perfmodel.cli.shared.models import reading_document, say_remarks, served_model_option
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import heading, print_json, remark, say
from perfmodel.cli.shared.serving_tables import cache_words, print_points

LIMITS, ASKED = "Limits", "Load"
NAMED = ("ttft", "ttft_p95", "ttft_p99", "tpot", "tpot_p95", "tpot_p99")
"""Limits with an option of their own."""
LOADS = ("input_length", "output_length", "length_spread", "prefix", "arrival_variation")
POOLS = ("one", "two", "both")
TRIED = 8
"""Clients under which numbers of the hardware are tried: any worker serves them."""


def _load(name: str) -> Any:
    spec = LOAD_FIELD_BY_NAME[name]
    return served.field_option(spec, ASKED, single=True)


def _others(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, float]:
    """Read ``VAR=VALUE`` of each limit."""
    found: dict[str, float] = {}
    for text in value:
        name, _, written = (part.strip() for part in text.partition("="))
        try:
            found_before, found[name] = name in found, float(written)
        except ValueError:
            raise click.BadParameter(f"'{text}' should be VAR=NUMBER, as in itl_p99=0.1") from None
        if found_before:
            raise click.BadParameter(f"'{name}' is limited twice")
    return found


@click.command("size", **page("core", "size", "Find the fewest devices for a served rate."))
@from_server_option
@served_model_option
@options.hardware_options
@options.options_of("core.size", "rate")
@options.stack(*map(_load, LOADS))
@options.options_of("core.size", *NAMED)
@options.options_of("core.size", "limit", callback=_others)
@served.engines_option
@served.degree_options
@served.one_precision_option
@served.speculative_option
@options.options_of("core.size", "pools", type=click.Choice(POOLS))
@options.options_of("core.size", "devices")
@options.set_option
@options.config_option
@options.options_of("core.size", "top")
@options.json_option
@options.verbosity_options
@served.collected
def size_command(
    model: str,
    reading: Mapping[str, Any],
    hardware: list[str],
    given: Mapping[str, Any],
    engine: list[str] | None,
    rate: float,
    others: Mapping[str, float],
    pools: str,
    devices: int,
    settings: Mapping[str, Any],
    top: int,
    as_json: bool,
    **limits: float | None,
) -> None:
    """Find the fewest devices on which a model serves a rate of requests within limits."""
    from perfmodel.kernels.serving.variables import SCHEMA_VERSION, VARIABLES
    from perfmodel.model.presets import load_model
    from perfmodel.serving.enumerate import load_grid, serving_grid
    from perfmodel.sweeps.size import size_deployment

    kept = {name: value for name, value in limits.items() if value is not None}
    if twice := kept.keys() & others.keys():
        raise click.UsageError(f"'{twice.pop()}' is limited twice")
    kept |= others
    if not kept:
        raise click.UsageError("a limit is needed, as in --ttft-p95 2 or --tpot-p95 0.03")
    spec = load_model(model, mtp="stated", **reading)
    say_remarks([spec])
    rows, _ = load_rows(hardware, of_hardware(settings), {})
    engines = load_engines(engine, settings, {})
    (axes,) = served.deployment_axes(given, pools=False)
    if of_hardware(settings):
        tried = axes | {"engine": engines, "workers": 1, "prefill_workers": int(pools != "one")}
        grid = serving_grid(spec, rows, **tried)
        check_points(grid, load_grid(**served.load_axes(given), concurrency=TRIED), "closed", False)
    found = size_deployment(
        spec,
        rows,
        rate=rate,
        limits=kept,
        loads=served.load_axes(given),
        deployments=axes | {"engine": engines},
        pools=pools,
        max_devices=devices,
        top=top,
    )
    if as_json:
        units = {name: each.units for name, each in VARIABLES.items()}
        about = {"schema_version": SCHEMA_VERSION, "model": spec.name, "units": units}
        about |= reading_document([spec]) | {"rate": rate, "limits": kept}
        print_json(about | {"deployments": list(found)})
        return
    words = ", ".join(f"{name} {value:g}" for name, value in kept.items())
    click.echo(heading(f"Fewest devices for {rate:g} requests/s of {spec.name} within {words}"))
    print_points(found)
    best = {str(row["hardware"]): row for row in reversed(found)}
    for name, row in reversed(best.items()):
        if words := cache_words(row):
            say(f"{name}: {words}")
    remark("\nWhat to try next")
    for row in reversed(best.values()):
        chosen = point_options(model, row, engines, settings, reading)
        remark(f"  perfmodel serve {chosen}")
