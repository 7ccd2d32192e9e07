"""``perfmodel wafer project``: a model on a mesh: one mapping, a grid of them, or the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.group import EXIT_NOTHING_FITS
from perfmodel.cli.shared import options
from perfmodel.cli.shared.models import model_option, say_remarks
from perfmodel.cli.shared.options import option, options_of, page, stack
from perfmodel.cli.shared.printing import remark
from perfmodel.cli.shared.types import Axis, Counts
from perfmodel.cli.wafer.options import complete_meshes
from perfmodel.wafer.result_subject import FIELD_BY_NAME

if TYPE_CHECKING:
    from perfmodel.base.table import Table
    from perfmodel.hwprofiles.mesh import MeshHardware
    from perfmodel.model.spec import ModelSpec

TOP_MAPPINGS = 20
SWEPT = ("grid", "context", "batch", "regions")


def _field_option(name: str) -> Any:
    spec = FIELD_BY_NAME[name]
    text = spec.description[0].upper() + spec.description[1:]
    if spec.choices:
        text += f": {', '.join(spec.choices)}"
    return option(
        f"--{spec.option}",
        name,
        section="Mapping",
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
    options_of("wafer.common", "map", "shape"),
)
"""Model, meshes, mapping, whole request, settings, and how a mapping is come by."""


@click.command("project", **page("wafer", "wafer project", "Project a model on a mesh of cores."))
@problem_options
@options.results_option("Write all mappings")
@options_of("wafer.project", "explain")
@options_of(
    "wafer.project", "top", help=f"Mappings to show, the fastest first.  [default: {TOP_MAPPINGS}]"
)
@options.json_option
@options.verbosity_options
@click.pass_context
def project_command(
    ctx: click.Context,
    model: str,
    reading: Mapping[str, Any],
    hardware: list[str],
    phase: list[str] | None,
    precision: str | None,
    cache_precision: str | None,
    no_head: bool,
    settings: Mapping[str, Any],
    swept: Mapping[str, Sequence[Any]],
    output: str | None,
    explain: bool,
    top: int | None,
    as_json: bool,
    isl: int | None,
    osl: int | None,
    prefill_grid: str | None,
    decode_grid: str | None,
    way: str,
    shape: str | None,
    **axes: Any,
) -> None:
    """Project a model on a mesh of cores: time, network, memory, pipeline regions."""
    from perfmodel.hwprofiles import load_mesh
    from perfmodel.model.presets import load_model
    from perfmodel.store.files import check_results_path

    whole = isl is not None or osl is not None
    for name, wrong in (
        ("--isl", whole and (isl is None or osl is None)),
        ("--prefill-grid", prefill_grid and not whole),
        ("--decode-grid", decode_grid and not whole),
    ):
        if wrong:
            raise click.UsageError(f"{name}: a whole request needs both --isl and --osl")
    for name, given in (
        ("--context", axes["context"]),
        ("--phase", phase),
        ("--sweep", swept),
        ("--explain", explain),
        ("--output", output),
    ):
        if whole and given:
            raise click.UsageError(f"{name} does not go with --isl and --osl")
    if way == "search" and (output or top or prefill_grid or decode_grid):
        raise click.UsageError(
            "--map search does not go with --output, --top, --prefill-grid or --decode-grid"
        )
    if shape and way != "search":
        raise click.UsageError("--shape goes with --map search")
    if output is not None:
        output = check_results_path(output)
    spec = load_model(model, **reading)
    say_remarks([spec])
    rows = [load_mesh(name, settings) for name in hardware]
    asked = {name: values for name, values in axes.items() if values is not None}
    asked |= {
        "precision": precision or "",
        "cache_precision": cache_precision or "",
        "head": not no_head,
    }
    if way == "search":
        from perfmodel.cli.wafer.output import search_and_show, search_request_and_show

        if isl is not None and osl is not None:
            lengths = (isl, osl)
            search_request_and_show(spec, rows, lengths, asked, shape or "square", as_json)
        else:
            asked |= _axes(swept, asked) | {"phase": phase or "decode", "parts": explain}
            search_and_show(spec, rows, asked, shape or "square", as_json)
    elif isl is not None and osl is not None:
        _request(ctx, spec, rows, isl, osl, (prefill_grid, decode_grid), asked, as_json)
    else:
        asked |= _axes(swept, asked) | {"phase": phase or "decode", "parts": explain}
        _table(ctx, spec, rows, asked, output, top, as_json)


def _axes(swept: Mapping[str, Sequence[float]], asked: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the fields that --sweep names."""
    for name in swept:
        if name not in SWEPT:
            raise click.UsageError(
                f"--sweep: '{name}' is none of {', '.join(SWEPT)}; one value of a number of the "
                "mesh is taken with --set"
            )
        if name in asked:
            raise click.UsageError(f"--{name} and --sweep both name {name}; drop one of the two")
    return {name: [round(value) for value in values] for name, values in swept.items()}


def _request(
    ctx: click.Context,
    model: ModelSpec,
    rows: Sequence[MeshHardware],
    isl: int,
    osl: int,
    grids: tuple[str | None, str | None],
    asked: dict[str, Any],
    as_json: bool,
) -> None:
    """Project and print a whole request."""
    from perfmodel.cli.wafer.output import show_request
    from perfmodel.wafer.project import project_request

    if len(rows) > 1:
        raise click.UsageError("--isl and --osl take one --hardware")
    (grid, *more) = asked.pop("grid", [None])
    if more:
        raise click.UsageError("--isl and --osl take one --grid")
    found = project_request(
        model,
        rows[0],
        input_length=isl,
        output_length=osl,
        prefill_grid=grids[0] or grid,
        decode_grid=grids[1] or grid,
        **asked,
    )
    _check_possible([found.prefill])
    _check_possible([found.decode])
    show_request(found, as_json)
    _leave(ctx, found.fits, [found.prefill, found.decode])


def _table(
    ctx: click.Context,
    model: ModelSpec,
    rows: Sequence[MeshHardware],
    asked: Mapping[str, Any],
    output: str | None,
    top: int | None,
    as_json: bool,
) -> None:
    """Project and print mappings."""
    from perfmodel.cli.wafer.output import show_table
    from perfmodel.store.files import save_results, stored_size
    from perfmodel.wafer.project import wafer_table

    found = wafer_table(model, rows, **asked)
    if asked["parts"] and found.sizes["mapping"] * len(rows) > 1:
        raise click.UsageError(
            f"--explain takes one mapping on one mesh, not {found.sizes['mapping']} on {len(rows)}"
        )
    _check_possible([found])
    if output is not None:
        save_results(found, output)
    show_table(found, top if top or as_json else TOP_MAPPINGS, as_json)
    if output is not None:
        remark(f"\nwrote {output} ({stored_size(output) / 1e6:.1f} MB)")
    _leave(ctx, bool(found["fits"].values.any()), [found])


def _check_possible(tables: Sequence[Table]) -> None:
    """Refuse mappings of which none has a time."""
    import numpy as np

    from perfmodel.base.errors import StrategyError
    from perfmodel.cli.wafer.output import misfit

    if not any(np.isfinite(found["latency"].values).any() for found in tables):
        raise StrategyError(misfit(tables))


def _leave(ctx: click.Context, fits: bool, tables: Sequence[Table]) -> None:
    """Warn and leave with code 3 where nothing fits."""
    from perfmodel.cli.wafer.output import misfit

    if not fits:
        click.echo(f"perfmodel: warning: {misfit(tables)}", err=True)
        ctx.exit(EXIT_NOTHING_FITS)
