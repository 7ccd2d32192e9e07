"""Variables of serving results: the one table of their units, words, parts and order.

Rows of `ROW_VARIABLES` are numbered in this order; closing kernels and replays take their row
numbers from here (`perfmodel.kernels.serving.tables.ROWS`).
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.kernels.variables import Variable, parts_of

SCHEMA_VERSION = "1.1"

QUANTILES = ("mean", "p50", "p95", "p99")
LATENCIES: Mapping[str, str] = {
    "time_to_first_token": "time from a request's arrival to its first token",
    "time_per_output_token": "time per token behind the first",
    "inter_token_latency": "time between two deliveries of tokens",
    "request_time": "time from a request's arrival to its last token",
}
_WORDS = {"mean": "mean", "p50": "median", "p95": "95th percentile", "p99": "99th percentile"}
_TOKENS_PER_SECOND = "tokens_per_second_per"

ROW_VARIABLES: tuple[Variable, ...] = (
    *(
        Variable(f"{name}_{quantile}", "s", f"{text}, {_WORDS[quantile]}")
        for name, text in LATENCIES.items()
        for quantile in QUANTILES
    ),
    Variable(
        f"{_TOKENS_PER_SECOND}_device",
        "1/s",
        "output tokens per second and device",
        short="tok/s/device",
        title="tokens/s per device",
        better="up",
    ),
    Variable(
        f"total_{_TOKENS_PER_SECOND}_device",
        "1/s",
        "tokens of prompts and answers per second and device",
        short="with prompts",
        title="all tokens/s per device",
        better="up",
    ),
    Variable(
        f"{_TOKENS_PER_SECOND}_user",
        "1/s",
        "tokens per second that one user sees",
        "1 / time_per_output_token_mean",
        short="tok/s/user",
        title="tokens/s per user",
        better="up",
    ),
    Variable(
        "request_rate",
        "1/s",
        "requests that are finished per second, all workers together",
        short="req/s",
        better="up",
    ),
    Variable(
        "batch",
        "1",
        "sequences that decode in a pass of a worker, mean",
        short="batch",
        better="up",
    ),
    Variable("queue_time", "s", "time until the first chunk of a prompt starts, mean"),
    Variable("utilization", "1", "share of time in which passes run", better="up"),
    Variable(
        "attention_time", "s", "attention and other mixers in a mean pass", part_of="pass_time"
    ),
    Variable("matrices_time", "s", "matrices in a mean pass", part_of="pass_time"),
    Variable("experts_time", "s", "routed experts in a mean pass", part_of="pass_time"),
    Variable("communication_time", "s", "communication in a mean pass", part_of="pass_time"),
    Variable(
        "other_time",
        "s",
        "norms, activations, logits and sampling in a mean pass",
        part_of="pass_time",
    ),
    Variable(
        "host_time",
        "s",
        "time in which the device waits for its host in a mean pass",
        part_of="pass_time",
    ),
    Variable("time_to_first_token_low", "s", "10th percentile of the mean time to first token"),
    Variable("time_to_first_token_high", "s", "90th percentile of the mean time to first token"),
    Variable("time_per_output_token_low", "s", "10th percentile of the mean time per token"),
    Variable("time_per_output_token_high", "s", "90th percentile of the mean time per token"),
)
"""Over deployment, hardware and load."""

MEMORY_VARIABLES: tuple[Variable, ...] = (
    Variable("memory_weights", "B", "weights on the fullest device", part_of="memory_total"),
    Variable("memory_activations", "B", "activations of the largest pass", part_of="memory_total"),
    Variable(
        "memory_workspace",
        "B",
        "libraries, captured graphs and communicators",
        part_of="memory_total",
    ),
    Variable("memory_cache", "B", "blocks of the cache, states included", part_of="memory_total"),
    Variable("memory_total", "B", "memory of the fullest device", title="memory"),
    Variable("kv_blocks", "1", "blocks of the cache of an attention rank", better="up"),
    Variable("kv_bytes_per_token", "B", "cache that a token takes on the fullest device"),
    Variable("sequence_state_bytes", "B", "what a sequence keeps on it whatever its length"),
)
"""Over deployment and hardware."""

OTHER_VARIABLES: tuple[Variable, ...] = (
    Variable(
        "fits",
        "1",
        "weights, activations and one request of the load find room",
        title="fits in memory",
    ),
    Variable("status", "1", "valid, or why there is no answer"),
)

COST_VARIABLES: tuple[Variable, ...] = (
    Variable("power_per_device", "W", "power of a device with its part of node and cooling"),
    Variable(
        "energy_per_token",
        "J",
        "energy per token of an answer",
        "power_per_device / tokens_per_second_per_device",
    ),
    Variable(
        "cost_per_token",
        "USD",
        "price of the devices per token of an answer",
        "price / tokens_per_second_per_device",
        title="cost per million tokens",
    ),
)

VARIABLES: Mapping[str, Variable] = {
    item.name: item for item in (*ROW_VARIABLES, *MEMORY_VARIABLES, *OTHER_VARIABLES)
}
COSTS: Mapping[str, Variable] = {item.name: item for item in COST_VARIABLES}

TIME_COMPONENTS = parts_of("pass_time", ROW_VARIABLES)
"""They add up to a mean pass."""

_SHORT = {
    "ttft": "time_to_first_token",
    "tpot": "time_per_output_token",
    "itl": "inter_token_latency",
}

ALIASES: Mapping[str, str] = {
    **{short: f"{name}_mean" for short, name in _SHORT.items()},
    **{
        f"{short}_{end}": f"{name}_{end}"
        for short, name in _SHORT.items()
        for end in (*QUANTILES, "low", "high")
        if not (short == "itl" and end in ("low", "high"))
    },
    "request_time": "request_time_mean",
}
"""Short names in options and filters: ttft_p95; alone they mean the mean."""
