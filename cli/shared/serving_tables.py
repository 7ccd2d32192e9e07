"""How operating points of served models look on a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.served_fields import DEPLOYMENT_FIELDS, ENGINE_LIMITS, LOAD_FIELDS
from perfmodel.cli.shared.printing import heading, percent, say, share, table
from perfmodel.cli.shared.tables import (
    Shown,
    as_written,
    decimals_for,
    header,
    print_parts,
    print_rows,
    shown_as_is,
)
from perfmodel.kernels.serving.variables import (
    ALIASES,
    COSTS,
    QUANTILES,
    SCHEMA_VERSION,
    VARIABLES,
)
from perfmodel.kernels.variables import RATE, memory_verdict

if TYPE_CHECKING:
    from perfmodel.base.table import Table
    from perfmodel.serving.pass_operations import PassOperation


MOST_BLOCK = 2**32
"""Tokens of a block beyond which it is no block of tokens, but a state."""
APART = ("model", "engine", "hardware", "prefill_hardware", "method")
"""What tells points apart beside their fields, in the order of columns."""
ALWAYS_SHOWN = ("tensor_parallel",)
SILENT: Mapping[str, Any] = {
    spec.name: spec.default for spec in (*DEPLOYMENT_FIELDS, *LOAD_FIELDS)
} | {"input_length": None, "output_length": None}
"""Field -> value that says nothing; what nobody would leave out has none."""
LATENCIES = {
    "time_to_first_token": "time to first token",
    "time_per_output_token": "time per output token",
    "inter_token_latency": "inter-token latency",
    "request_time": "time of a request",
}
TOKENS = (RATE, "total_tokens_per_second_per_device", "tokens_per_second_per_user", "batch")
PASS_PARTS = {
    "attention_time": "attention and other mixers",
    "matrices_time": "products with weights",
    "experts_time": "routed experts",
    "communication_time": "communication",
    "other_time": "norms, activations, logits, sampling",
    "host_time": "waiting for the host",
}
MEMORY_PARTS = ("memory_weights", "memory_activations", "memory_workspace", "memory_cache")
NOTHING = "–"


def points_header(table: Table) -> dict[str, Any]:
    """Return what every JSON document about served models begins with."""
    return header(table, SCHEMA_VERSION, ("model",), {**VARIABLES, **COSTS})


def variable_title(name: str) -> str:
    """Return what a variable is in words, and its name."""
    found = {**VARIABLES, **COSTS}.get(ALIASES.get(name, name))
    return f"{found.long_name} ({name})" if found else name


def print_points(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print operating points, one line each, with the fields in which they differ."""
    apart = [name for name in APART if len({row.get(name) for row in rows}) > 1]
    fields = _shown_fields(rows)
    figures = [name for name in FIGURES if any(_known(row.get(name)) for row in rows)]
    decimals = decimals_for([row[RATE] for row in rows if _known(row[RATE])])
    columns = [shown_as_is(name, left=True) for name in apart]
    columns += [Shown(spec.option, _field(spec.name)) for spec in fields]
    columns += [Shown(FIGURES[name], _figure(name, decimals)) for name in figures]
    common = [str(rows[0][name]) for name in APART if name not in apart and rows[0].get(name)]
    common += field_words(rows[0], but={spec.name for spec in fields})
    print_rows(rows, columns, common, spare=SPARE)


def _field(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: written(row[name])


FIGURES = {
    "devices": "devices",
    "time_to_first_token_mean": "ttft",
    "time_to_first_token_p95": "ttft p95",
    "time_per_output_token_mean": "tpot",
    "time_per_output_token_p95": "tpot p95",
    **{name: item.short for name, item in VARIABLES.items() if item.short},
}
"""Result -> heading of its column."""
SPARE = ("with prompts", "batch", "req/s", "tpot p95", "ttft p95", "devices")
"""Columns that a narrow terminal does without, the first one first."""


def _known(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def _figure(name: str, decimals: int) -> Callable[[Mapping[str, Any]], str]:
    """Return how a result stands in a row."""
    from perfmodel.base.units import format_time

    form: Callable[[float], str]
    if name.startswith("time_"):
        form = format_time
    elif name == "request_rate":
        form = "{:.4g}".format
    else:
        form = f"{{:,.{decimals if name == RATE else 0 if name == 'devices' else 1}f}}".format
    return lambda row: form(row[name]) if _known(row[name]) else NOTHING


def _shown_fields(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    def differs(name: str) -> bool:
        if name not in ENGINE_LIMITS:
            return len({row[name] for row in rows}) > 1
        pairs = {(row["engine"], row[name]) for row in rows}  # what engines bring is no choice
        return len(pairs) > len({row["engine"] for row in rows})

    return [
        spec
        for spec in (*DEPLOYMENT_FIELDS, *LOAD_FIELDS)
        if spec.name in ALWAYS_SHOWN or differs(spec.name)
    ]


def field_words(row: Mapping[str, Any], but: Collection[str] = ()) -> list[str]:
    """Return the options and values of a point that say something, without some fields."""
    return [
        f"{spec.option} {written(row[spec.name])}"
        for spec in (*DEPLOYMENT_FIELDS, *LOAD_FIELDS)
        if spec.name not in but
        and spec.name not in ENGINE_LIMITS
        and row[spec.name] != SILENT[spec.name]
    ]


def written(value: Any) -> str:
    """Return a value of a field as a cell."""
    return as_written(value, lambda it: f"{it:,.0f}" if it == round(it) else f"{it:g}")


def print_latencies(row: Mapping[str, Any]) -> None:
    """Print how long one waits: means, percentiles, and bounds of the means."""
    from perfmodel.base.units import format_range, format_time

    lines = []
    for name, title in LATENCIES.items():
        values = [row[f"{name}_{statistic}"] for statistic in QUANTILES]
        if not any(map(_known, values)):
            continue
        low, high = (row.get(f"{name}_{end}", math.nan) for end in ("low", "high"))
        band = format_range(low, high, values[0])
        lines.append([title, *(format_time(x) if _known(x) else NOTHING for x in values), band])
    click.echo(table(["latency", *QUANTILES, "mean, 10–90 %"], lines, left=(0,)))


def print_throughput(row: Mapping[str, Any]) -> None:
    """Print rates, and how full the deployment runs."""
    from perfmodel.base.units import format_time

    lines = [
        [VARIABLES[name].long_name, f"{row[name]:,.{1 if name in TOKENS else 3}f}"]
        for name in (*TOKENS, "request_rate")
        if _known(row[name])
    ]
    if _known(row["queue_time"]):
        lines.append([VARIABLES["queue_time"].long_name, format_time(row["queue_time"])])
    lines.append([VARIABLES["utilization"].long_name, percent(row["utilization"])])
    click.echo(table(["throughput", ""], lines))


def print_pass(row: Mapping[str, Any]) -> None:
    """Print where the time of a mean pass goes."""
    from perfmodel.base.units import format_time

    whole = sum(row[name] for name in PASS_PARTS)
    print_parts("time of a pass", row, PASS_PARTS, format_time, ("a mean pass", whole))


def print_serving_memory(row: Mapping[str, Any]) -> None:
    """Print the components of the memory of the fullest device, and what its cache holds."""
    from perfmodel.base.units import counted, format_gib

    parts = {name: VARIABLES[name].long_name for name in MEMORY_PARTS}
    total = VARIABLES["memory_total"].long_name, row["memory_total"]
    print_parts("memory per device", row, parts, format_gib, total, empty=True)
    held = f"{row['kv_blocks']:,.0f} blocks of {counted(int(row['kv_block_tokens']), 'token')}"
    if row["kv_block_tokens"] > MOST_BLOCK:
        held = f"{row['kv_blocks']:,.0f} states"
    say(f"{format_gib(row['memory_capacity'])} of device memory; {held} on an attention rank")
    if words := cache_words(row):
        say(words)
    if memory_verdict(row) == "tight":
        say("tight: by the measured error of memory there may be no room for one request")


def cache_words(row: Mapping[str, Any]) -> str:
    """Say what a cache holds, as engines print it; empty where nothing is kept of a token."""
    tokens, concurrency = row["kv_tokens"], row["kv_concurrency"]
    if not tokens or not _known(tokens):
        return ""
    words = f"KV cache of {tokens:,.0f} tokens"
    if _known(concurrency) and concurrency > 0:
        longest = row["context_length"] or row["kv_longest_request"]
        words += f"; maximum concurrency at {longest:,.0f} tokens a request: {concurrency:,.2f}x"
    return words


def print_operations(name: str, operations: Sequence[PassOperation], top: int) -> None:
    """Print the operations of a pass that take longest, and what the others take."""
    from perfmodel.base.units import counted, format_time

    whole = sum(item.adds for item in operations)
    ordered = sorted(operations, key=lambda item: -item.adds)
    lines = [
        [
            f"{item.part} {item.name}",
            item.kind,
            item.shape,
            f"{item.calls:,.0f}",
            format_time(item.time),
            format_time(item.adds),
            share(item.adds, whole),
            item.bound,
        ]
        for item in ordered[:top]
    ]
    if rest := ordered[top:]:
        left = sum(item.adds for item in rest)
        text = counted(len(rest), "more operation")
        lines.append([text, "", "", "", "", format_time(left), share(left, whole), ""])
    lines.append([f"the {name} pass", "", "", "", "", format_time(whole), percent(1.0), ""])
    click.echo(heading(f"A {name} pass"))
    headers = ["operation", "part", "shape", "calls", "a call", "adds", "share", "bound"]
    click.echo(table(headers, lines, left=(0, 1, 2, 7), spare=(4, 1, 2)))
