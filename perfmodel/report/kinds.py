"""What the page shows of each kind of results: which figures rank, trade off, add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perfmodel.kernels import variables
from perfmodel.kernels.serving import variables as serving_variables
from perfmodel.kernels.variables import RATE
from perfmodel.wafer import result_subject as wafer_variables

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Waterfall:
    """Parts that add up to a whole.

    Attributes
    ----------
    title, whole : str
        The heading, and the figure that the parts add up to.
    parts : tuple of str
        Figures, in the order in which they are stacked.
    strip : tuple of str
        Ends of their names that the labels of the parts do without.
    """

    title: str
    whole: str
    parts: tuple[str, ...]
    strip: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kind:
    """How one kind of results is shown.

    Attributes
    ----------
    name, title : str
    one, many : str
        What a row is called.
    rank : str
        Figure by which rows are ranked at first.
    answer : str
        Figure that is finite where there is an answer; it has the band.
    trades : tuple of (str, str)
        Figures that the trade-off chart offers together, x and y.
    figures : tuple of str
        Figures in the order of their importance; others follow while there is room.
    table : tuple of str
        Columns of the table of the best.
    axes : tuple of str
        Figures that have an axis beside the choices.
    waterfalls : tuple of Waterfall
    bands : mapping of str to (str, str)
        Figure -> those that hold its 10th and 90th percentile.
    larger : frozenset of str
        Figures of which more is better; of all others less.
    verb : str
        Command that projects one row again; empty where none takes all that a row has.
    map : tuple of str
        Choices that the heat map lies over at first, down and across.
    heading : str
        Of the table of the rows that rank first.
    """

    name: str
    title: str
    one: str
    many: str
    rank: str
    answer: str
    trades: Pairs
    figures: tuple[str, ...]
    table: tuple[str, ...]
    axes: tuple[str, ...]
    waterfalls: tuple[Waterfall, ...] = ()
    bands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    verb: str = ""
    map: tuple[str, ...] = ()
    heading: str = ""


_USER = "tokens_per_second_per_user"
_OF_COMPONENT = ("_time", "_exposed")

TRAINING = Kind(
    "training",
    "Training steps",
    "strategy",
    "strategies",
    RATE,
    "step_time",
    (
        ("memory_total", RATE),
        ("cost_per_token", RATE),
        ("cost_per_token", "training_time"),
        ("energy_per_token", RATE),
        ("devices", "training_time"),
        ("communication_share", "model_flops_utilization"),
    ),
    (
        *(RATE, "memory_total", "step_time", "model_flops_utilization", "cost_per_token"),
        *("training_time", "training_cost", "goodput", "energy_per_token"),
        *("communication_share", "bubble_share", "hardware_flops_utilization"),
        *("step_time_low", "step_time_high", "memory_high"),
    ),
    (
        *("step_time", RATE, "model_flops_utilization", "memory_total"),
        *("training_time", "training_cost", "cost_per_token"),
    ),
    (RATE, "memory_total", "communication_share", "bubble_share"),
    (
        Waterfall(
            "Where the time goes", "step_time", tuple(variables.TIME_COMPONENTS), _OF_COMPONENT
        ),
        Waterfall(
            "Where the memory goes",
            "memory_total",
            tuple(variables.MEMORY_COMPONENTS),
            ("memory_",),
        ),
    ),
    {"step_time": ("step_time_low", "step_time_high"), "memory_total": ("", "memory_high")},
    "project",
    ("pipeline_parallel", "tensor_parallel"),
    "Best strategies",
)
SERVING = Kind(
    "serving",
    "Served models",
    "operating point",
    "operating points",
    RATE,
    "request_time_mean",
    (
        (_USER, RATE),
        ("time_to_first_token_p95", RATE),
        ("cost_per_token", _USER),
        ("energy_per_token", _USER),
        ("memory_total", RATE),
    ),
    (
        *(RATE, _USER, "time_to_first_token_mean", "time_to_first_token_p95"),
        *("time_per_output_token_mean", "memory_total", "cost_per_token", "energy_per_token"),
        *("request_rate", "utilization", "batch"),
    ),
    (
        *("time_to_first_token_mean", "time_to_first_token_p95", "time_per_output_token_mean"),
        *(RATE, _USER, "memory_total", "cost_per_token"),
    ),
    (RATE, _USER, "time_to_first_token_p95"),
    (
        Waterfall(
            "Where a mean pass goes", "pass_time", serving_variables.TIME_COMPONENTS, ("_time",)
        ),
        Waterfall(
            "Where the memory goes",
            "memory_total",
            ("memory_weights", "memory_activations", "memory_workspace", "memory_cache"),
            ("memory_",),
        ),
    ),
    {
        f"{name}_mean": (f"{name}_low", f"{name}_high")
        for name in ("time_to_first_token", "time_per_output_token")
    },
    "serve",
    ("tensor_parallel", "concurrency"),
    "Best operating points",
)
WAFER = Kind(
    "wafer",
    "Meshes of cores",
    "mapping",
    "mappings",
    "tokens_per_second",
    "latency",
    (
        ("sram_used", "tokens_per_second"),
        ("mesh_tokens_per_second", "tokens_per_second"),
        ("link_utilization", "tokens_per_second"),
    ),
    (
        *("tokens_per_second", "latency", "sram_used", "utilization", "mesh_tokens_per_second"),
        "link_utilization",
    ),
    ("latency", "tokens_per_second", "mesh_tokens_per_second", "utilization", "sram_used"),
    ("tokens_per_second", "sram_used", "utilization"),
    (
        Waterfall(
            "Where the latency goes", "latency", tuple(wafer_variables.TIME_COMPONENTS), ("_time",)
        ),
        Waterfall(
            "What the fullest core holds",
            "sram_used",
            ("weight_bytes", "cache_bytes", "activation_bytes"),
            ("_bytes",),
        ),
    ),
    {},
    "",
    ("grid_rows", "grid_columns"),
    "Best mappings",
)
COMPARISON = Kind(
    "comparison",
    "Compared with measured runs",
    "measured run",
    "measured runs",
    "absolute_error",
    "projected",
    (("measured", "projected"), ("measured", "error")),
    ("absolute_error", "error", "measured", "projected"),
    ("measured", "projected", "error"),
    ("error", "measured"),
    (
        Waterfall(
            "Where the projected time goes",
            "projected",
            tuple(f"projected_{name}" for name in variables.TIME_COMPONENTS),
            ("projected_", *_OF_COMPONENT),
        ),
        Waterfall(
            "Where the projected memory goes",
            "projected_memory_total",
            tuple(f"projected_{name}" for name in variables.MEMORY_COMPONENTS),
            ("projected_memory_",),
        ),
    ),
    {"projected": ("projected_step_time_low", "projected_step_time_high")},
    map=("model", "hardware"),
    heading="Largest errors",
)
RANKS = Kind(
    "ranks",
    "Simulated ranks",
    "rank",
    "ranks",
    "wall_time",
    "wall_time",
    (("exposed_communication", "wall_time"), ("gpu_time", "communication_time")),
    ("wall_time", "gpu_time", "exposed_communication", "communication_time", "peak_memory"),
    ("wall_time", "gpu_time", "communication_time", "exposed_communication", "peak_memory"),
    ("wall_time", "gpu_time", "exposed_communication"),
    (
        Waterfall(
            "Where the wall time goes",
            "wall_time",
            ("gpu_time", "exposed_communication"),
            ("_time",),
        ),
    ),
    heading="Slowest ranks",
)
LAYERS = Kind(
    "layers",
    "Simulated layers",
    "layer and pass",
    "layers and passes",
    "busy_time",
    "busy_time",
    (("compute_time", "exposed_communication"), ("compute_time", "communication_time")),
    ("busy_time", "compute_time", "exposed_communication", "communication_time"),
    ("busy_time", "compute_time", "exposed_communication", "communication_time"),
    ("busy_time", "compute_time", "exposed_communication"),
    (
        Waterfall(
            "Where the time goes",
            "busy_time",
            ("compute_time", "exposed_communication"),
            ("_time",),
        ),
    ),
    heading="Slowest layers",
)

SLOWEST_FIRST = frozenset({"absolute_error", "wall_time", "busy_time"})
"""Ranked from the largest: not because that is good, but because that is what one looks for."""

TITLES: Mapping[str, str] = {
    **{
        name: item.title
        for table in (variables, serving_variables, wafer_variables)
        for name, item in table.VARIABLES.items()
        if item.title
    },
    "time_to_first_token_mean": "time to first token",
    "time_to_first_token_p95": "time to first token, p95",
    "time_per_output_token_mean": "time per output token",
    "request_time_mean": "request time",
    "cost_per_token": variables.COSTS["cost_per_token"].title,
    "global_batch_size": "global batch",
    "micro_batch_size": "micro-batch",
    "communication_share": "exposed communication",
    "bubble_share": "pipeline bubble, share",
    "absolute_error": "absolute error",
}
SHORT: Mapping[str, str] = {
    "hardware": "hardware",
    RATE: "tokens/s/device",
    _USER: "tokens/s/user",
    "time_to_first_token_mean": "TTFT",
    "time_to_first_token_p95": "TTFT p95",
    "time_per_output_token_mean": "TPOT",
    "cost_per_token": "USD/Mtoken",
    "memory_total": "memory",
    "model_flops_utilization": "MFU",
    "fits": "fits",
    "grid_rows": "rows",
    "grid_columns": "columns",
    "communication_share": "communication",
    "bubble_share": "bubble",
}
SHARES = ("utilization", "share", "goodput", "error", "fraction", "acceptance", "_spread")
"""Ends of the names of figures that read best in per cent."""


def title_of(name: str) -> str:
    """Return how a column is called on the page."""
    return TITLES.get(name, name.replace("_", " "))


def form_of(name: str, units: str) -> str:
    """Return how the page writes a figure."""
    if name == "cost_per_token":
        return "per_million"
    if units == "1" and name.endswith(SHARES):
        return "percent"
    return {"s": "time", "B": "bytes", "J": "joule", "W": "watt", "USD": "money"}.get(
        units, "number"
    )
