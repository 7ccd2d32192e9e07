"""Options of models on meshes of cores, made from the table of a mapping's fields."""

from __future__ import annotations

from typing import Any

from perfmodel.cli.shared import options
from perfmodel.cli.shared.models import model_option
from perfmodel.cli.shared.options import option, options_of, stack
from perfmodel.cli.shared.types import Axis, Counts
from perfmodel.wafer.fields import FIELD_BY_NAME

MAPPING, REQUEST = "Mapping", "Whole request"


def complete_meshes(ctx: Any, param: Any, incomplete: str) -> list[Any]:
    """Complete the name of a mesh that ships."""
    from click.shell_completion import CompletionItem

    from perfmodel.hwprofiles import list_meshes

    return [CompletionItem(name) for name in list_meshes() if name.startswith(incomplete)]


def _field_option(name: str) -> Any:
    spec = FIELD_BY_NAME[name]
    text = spec.description[0].upper() + spec.description[1:]
    if spec.choices:
        text += f": {', '.join(spec.choices)}"
    return option(
        f"--{spec.option}",
        name,
        section=MAPPING,
        type=Axis(spec) if spec.choices else Counts(minimum=int(spec.minimum)),
        help=f"{text}.  [default: {spec.default}]",
    )


problem_options = stack(
    model_option,
    options_of("wafer.common", "hardware", shell_complete=complete_meshes),
    options_of("wafer.common", "phase", "grid"),
    *map(_field_option, ("context", "batch", "regions", "collective", "product", "cache_layout")),
    options_of(
        "wafer.common",
        "precision",
        "cache_precision",
        "no_head",
        "isl",
        "osl",
        "prefill_grid",
        "decode_grid",
    ),
    options_of("wafer.common", "set", callback=options.read_settings),
    options_of("wafer.common", "sweep", callback=options.read_swept),
)
"""Model, meshes, mapping, whole request, settings."""

search_options = options_of("wafer.common", "map", "shape")
"""How a mapping is come by."""
