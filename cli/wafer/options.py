"""Options of models on meshes of cores, made from the table of a mapping's fields."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.cli.shared import options
from perfmodel.cli.shared.models import reading_options
from perfmodel.cli.shared.options import option, stack
from perfmodel.cli.shared.types import Axis, Counts, One, Paths, WholeRange, Words
from perfmodel.kernels.wafer.columns import PHASES
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
    option(
        "--model",
        section=options.PROBLEM,
        required=True,
        type=One(Paths()),
        metavar="NAME|PATH",
        shell_complete=options.complete_models,
        help=f"{options.MODEL_HELP}.",
    ),
    reading_options,
    option(
        "--hardware",
        section=options.PROBLEM,
        required=True,
        type=Paths(),
        shell_complete=complete_meshes,
        help="Mesh of cores: wse-2, wse-3, tenstorrent-wormhole, … ('perfmodel hardware list' "
        "names all), or the path of a profile; several to compare.",
    ),
    option(
        "--phase",
        section=options.PROBLEM,
        type=Words(),
        metavar="PHASE,…",
        help=f"{' or '.join(PHASES)}: a token of every sequence, or whole prompts.  "
        "[default: decode]",
    ),
    option(
        "--grid",
        section=MAPPING,
        type=Words(),
        metavar="N|RxC,…",
        help="Cores of a region: a side, or rows x columns.  [default: the largest square]",
    ),
    _field_option("context"),
    _field_option("batch"),
    _field_option("regions"),
    _field_option("collective"),
    _field_option("product"),
    _field_option("cache_layout"),
    option(
        "--precision",
        section=MAPPING,
        type=One(Words()),
        metavar="FORMAT",
        help="Of weights and products; 16 bit unless chips stream 8-bit blocks.",
    ),
    option(
        "--cache-precision",
        section=MAPPING,
        type=One(Words()),
        metavar="FORMAT",
        help="Of keys and values in the cores.  [default: as activations]",
    ),
    option(
        "--no-head",
        section=MAPPING,
        is_flag=True,
        help="Leave the output matrix out, as published timings of layers do.",
    ),
    option("--isl", section=REQUEST, type=WholeRange(1), metavar="N", help="Tokens of the prompt."),
    option("--osl", section=REQUEST, type=WholeRange(1), metavar="N", help="Tokens of the answer."),
    option(
        "--prefill-grid",
        section=REQUEST,
        metavar="N|RxC",
        help="Cores of a region for the prompt.  [default: --grid]",
    ),
    option(
        "--decode-grid",
        section=REQUEST,
        metavar="N|RxC",
        help="Cores of a region for the answer.  [default: --grid]",
    ),
    option(
        "--set",
        "settings",
        section=options.HARDWARE,
        multiple=True,
        metavar="PATH=VALUE",
        callback=options.read_settings,
        help="Replace one value of the mesh, in SI units, as in mesh.clock=1e9 or "
        "constants.stage_latency=20 ('perfmodel hardware show' lists them). May be repeated.",
    ),
    option(
        "--sweep",
        "swept",
        section=MAPPING,
        multiple=True,
        metavar="FIELD=RANGE",
        callback=options.read_swept,
        help="Several values of grid (a side), context, batch or regions: START:STOP:COUNT (evenly "
        "spaced), START:STOP:COUNT:log, or A,B,…, as in grid=300:720:8. May be repeated: all "
        "combinations.",
    ),
)
"""Model, meshes, mapping, whole request, settings."""

search_options = stack(
    option(
        "--map",
        "way",
        section=MAPPING,
        type=click.Choice(["given", "search"]),
        default="given",
        help="Project the mappings given, or find the fastest that fits memory and routes; then "
        "--grid (sides), --regions (at most), --collective, --product and --cache-layout narrow "
        "the choice.  [default: given]",
    ),
    option(
        "--shape",
        section=MAPPING,
        type=click.Choice(["square", "rectangle"]),
        help="Of the grids that a search tries.  [default: square]",
    ),
)
"""How a mapping is come by."""
