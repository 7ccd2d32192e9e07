"""Variables of serving results: the one table of their units, words, parts and order.

The table is ``variables.csv``. Rows of `ROW_VARIABLES` are numbered in this order; closing kernels
and replays take their row numbers from here (`perfmodel.kernels.serving.tables.ROWS`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from perfmodel.kernels.variables import Variable, parts_of, read_variables

SCHEMA_VERSION = "1.3"

QUANTILES = ("mean", "p50", "p95", "p99")

ROW_VARIABLES, MEMORY_VARIABLES, OTHER_VARIABLES, COST_VARIABLES = read_variables(
    Path(__file__).with_name("variables.csv")
).values()
"""Over deployment, hardware and load; over deployment and hardware; what follows from them; and
what `perfmodel.store.cost` adds."""

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
