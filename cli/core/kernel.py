"""``perfmodel kernel gemm``, ``attention``, ``moe`` and the others, made of `KERNELS`.

Axes, defaults and limits are those of `perfmodel.sweeps.grids`; pages are in ``pages.toml``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from perfmodel.base.errors import DataError
from perfmodel.base.fields import Field
from perfmodel.cli.group import CommandGroup
from perfmodel.cli.shared import options
from perfmodel.cli.shared.inputs import check_acts, load_rows
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import percent, print_json, remark, say, table
from perfmodel.cli.shared.tables import as_written
from perfmodel.cli.shared.types import Words
from perfmodel.sweeps.grids import KERNELS
from perfmodel.sweeps.kernel_kinds.kind import Kernel

if TYPE_CHECKING:
    from perfmodel.base.table import Table
    from perfmodel.hwprofiles import Hardware

Function = TypeVar("Function", bound=Callable[..., Any])
Tabulate = Callable[[Sequence[Mapping[str, Any]], Mapping[str, bool], int], None]
"""(first rows, axis -> whether it varies, rows in all): print a table of a grid."""

# Result -> heading of its column; tile_m and tile_n share one.
HEADINGS = {
    "time": "time",
    "flops_per_second": "FLOP/s",
    "peak_share": "of peak",
    "bytes_per_second": "B/s",
    "bandwidth_share": "of memory",
    "tile": "tile",
    "split_k": "split",
    "bound": "bound",
}
ONE_VALUE = 1
NUMBER = "{:g}".format
# Axes of mixers whose 0 (or "same") means the value of another axis, or none.
MEAN_ANOTHER = (
    *("kv_heads", "head_dim_v", "q_len", "kv_len", "window", "kv_precision"),
    *("selected", "compression", "key_heads", "value_dim"),
)


def grid_options(function: Function) -> Function:
    """Add what all kernels have in common: hardware and output."""
    return options.stack(
        options.hardware_options,
        options.set_option,
        options.sweep_option,
        output_options,
    )(function)


def output_options(function: Function) -> Function:
    """Add where a grid goes: a file, a table of some lines, JSON."""
    return options.stack(
        options.results_option("Write the whole grid"),
        options.options_of("core.kernel", "lines"),
        options.json_option,
        options.verbosity_options,
    )(function)


def run_grid(
    evaluate: Callable[[list[Hardware], Mapping[str, list[float]]], Table],
    hardware: Sequence[str],
    settings: Mapping[str, Any],
    swept: Mapping[str, Any],
    output: str | None,
    shown: int,
    as_json: bool,
    tabulate: Tabulate | None = None,
) -> None:
    """Load the hardware, evaluate the grid, and print or write it."""
    from perfmodel.analysis.acting import digests
    from perfmodel.store.files import check_results_path

    rows, values = load_rows(hardware, settings, swept)

    def results(rows: list[Hardware], most: int) -> list[bytes | None]:
        return digests(evaluate(rows, {}))

    check_acts(hardware, settings, swept, results)
    if output is not None:
        output = check_results_path(output)
    show_grid(evaluate(rows, values), output, shown, as_json, tabulate)


def show_grid(
    grid: Table,
    output: str | None,
    shown: int,
    as_json: bool,
    tabulate: Tabulate | None = None,
) -> None:
    """Write a grid where a file is named, and print it."""
    from perfmodel.store.files import save_results, stored_size
    from perfmodel.store.results import TRUST, trust_by_hardware
    from perfmodel.sweeps.grid_dataset import SCHEMA_VERSION, kernel_rows
    from perfmodel.sweeps.trust import uncalibrated

    if output is not None:
        save_results(grid, output)
    total = grid.sizes["hardware"] * grid.sizes["shape"]
    if as_json:
        print_json(
            {
                "schema_version": SCHEMA_VERSION,
                "kernel": grid.attrs["kernel"],
                "units": {name: column.attrs["units"] for name, column in grid.variables.items()},
                "output": output,
                **({"constants_trust": trust_by_hardware(grid)} if TRUST in grid else {}),
                "rows": kernel_rows(grid),
            }
        )
    else:
        (tabulate or _print)(kernel_rows(grid, shown), _axes(grid), total)
        for line in uncalibrated(grid):
            say(line, 11)
    if output is not None:
        remark(f"\nwrote {output} ({stored_size(output) / 1e6:.1f} MB)")


def _axes(grid: Table) -> dict[str, bool]:
    """Return every axis, and whether it has more than one value."""
    names = [
        name
        for name, column in grid.coords.items()
        if name not in ("shape", "hardware") and {*column.dims} <= {"shape", "hardware"}
    ]
    found = {"hardware": grid.sizes["hardware"] > ONE_VALUE}
    return found | {name: len(set(grid[name].values.tolist())) > ONE_VALUE for name in names}


def _print(rows: Sequence[Mapping[str, Any]], axes: Mapping[str, bool], total: int) -> None:
    varied = [name for name, several in axes.items() if several]
    results = [
        name for name in HEADINGS if name in rows[0] or (name == "tile" and "tile_m" in rows[0])
    ]
    headers = [*varied, *(HEADINGS[name] for name in results)]
    lines = [
        [
            *(as_written(row[name], NUMBER) for name in varied),
            *(_cell(name, row) for name in results),
        ]
        for row in rows
    ]
    click.echo(table(headers, lines, left=(0, len(headers) - 1) if varied else (len(headers) - 1,)))
    fixed = [
        f"{name} {as_written(rows[0][name], NUMBER)}"
        for name, several in axes.items()
        if not several and not _as_another(name, rows[0][name])
    ]
    if fixed:
        say(f"all: {' · '.join(fixed)}", 5)
    if total > len(rows):
        click.echo(f"… and {total - len(rows):,} more; --lines, --json or -o FILE shows them")


def _as_another(name: str, value: Any) -> bool:
    """Whether the value of an axis only says that another axis, or nothing, counts."""
    return name in MEAN_ANOTHER and value in (0, "same")


def _cell(name: str, row: Mapping[str, Any]) -> str:
    from perfmodel.base.units import format_si, format_time

    if name == "bound":
        return str(row["bound"])
    if not math.isfinite(row["time"]):
        return "–"
    if name == "tile":
        return f"{row['tile_m']}×{row['tile_n']}"
    value = row[name]
    if name == "time":
        return format_time(value)
    if name.endswith("_share"):
        return "–" if not math.isfinite(value) else percent(value)
    if name.endswith("_per_second"):
        return format_si(value, even=True)
    return str(value)


SHAPE = "Shape"


def axis_parameter(axis: Field) -> Callable[[Function], Function]:
    """Return the option, or the argument, for an axis; compulsory without a default."""
    if axis.kind == "argument":
        metavar = f"[{axis.name.upper()},…]"
        return click.argument(axis.name, metavar=metavar, type=Words(), required=False)
    text = axis.description + (f": {', '.join(axis.choices)}." if axis.choices else "")
    given = {} if axis.default is None else {"default": str(axis.default)}
    return options.field_option(axis, section=SHAPE, help=text, **given)


def setting_option(setting: Field) -> Callable[[Function], Function]:
    """Return the option for a setting."""
    shown = {} if setting.default is None else {"show_default": True}
    return options.field_option(setting, section=SHAPE, **shown)


def kernel_command(kernel: Kernel) -> click.Command:
    """Return the command that evaluates grids of a kernel."""

    def run(**given: Any) -> None:
        axes = {axis.name: given.pop(axis.name) for axis in kernel.axes}
        axes = {name: values for name, values in axes.items() if values is not None}
        settings = {setting.name: given.pop(setting.name) for setting in kernel.settings}
        try:
            kernel.grid(axes)
        except DataError as error:
            raise click.UsageError(str(error)) from error

        def evaluate(rows: list[Hardware], swept: Mapping[str, list[float]]) -> Table:
            from perfmodel.sweeps.grids import kernel_grid

            return kernel_grid(kernel.name, rows, axes, swept=swept, **settings)

        run_grid(evaluate, **given)

    decorated = options.stack(
        *map(axis_parameter, kernel.axes), *map(setting_option, kernel.settings), grid_options
    )(run)
    about = page("core", f"kernel {kernel.name}", kernel.short_help)
    return click.command(kernel.name, **about)(decorated)


COMMANDS = [kernel_command(kernel) for kernel in KERNELS.values()]


@click.group("kernel", **page("core", "kernel", "Time single kernels.", CommandGroup))
def kernel_group() -> None:
    """Time single kernels on one or more devices: one shape, or a grid of shapes."""


for _command in COMMANDS:
    kernel_group.add_command(_command)
