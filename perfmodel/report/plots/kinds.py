"""Every kind of figure: what it is of, and which options it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.base.files import user_path

if TYPE_CHECKING:
    import xarray as xr

    from perfmodel.base.table import Table
    from perfmodel.report.plots.accuracy import Compared
    from perfmodel.report.plots.figure import Plot

ROWS = ("where", "everything")
PICK = ("pick", "by", *ROWS)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of figure.

    Attributes
    ----------
    home : str
        ``module:function`` that describes it.
    options : tuple of str
        What the function takes beside results and paper.
    opened : str
        ``module:function`` that opens its file.
    """

    home: str
    options: tuple[str, ...]
    opened: str = "perfmodel.store.results:open_table"


_HERE = "perfmodel.report.plots"
KINDS: Mapping[str, Kind] = {
    "pareto": Kind(f"{_HERE}.pareto:pareto_plot", ("x", "y", "group", "band", "log", *ROWS)),
    "breakdown": Kind(f"{_HERE}.bars:breakdown_plot", ("top", "by", "each", "band", *ROWS)),
    "memory": Kind(f"{_HERE}.bars:memory_plot", ("top", "each", "stages", *PICK)),
    "heatmap": Kind(f"{_HERE}.pareto:heatmap_plot", ("x", "y", "value", "log", *ROWS)),
    "scaling": Kind(f"{_HERE}.pareto:scaling_plot", ROWS),
    "roofline": Kind(
        f"{_HERE}.roofline:roofline_plot", ("hardware", *PICK), f"{_HERE}.kinds:open_operations"
    ),
    "pipeline": Kind("perfmodel.report.plots.pipeline:pipeline_plot", PICK),
    "sensitivity": Kind(
        f"{_HERE}.sensitivity:sensitivity_plot", ("top",), f"{_HERE}.sensitivity:read_sensitivity"
    ),
    "accuracy": Kind(
        f"{_HERE}.accuracy:accuracy_plot", ("group", "where"), f"{_HERE}.accuracy:read_compared"
    ),
}


def plot(
    results: Table | xr.Dataset | Compared | str | Path,
    kind: str,
    *,
    width: str | float = "column",
    title: str = "",
    **options: Any,
) -> Plot:
    """Describe a figure of some results, to be saved or shown.

    Parameters
    ----------
    results : Table, xarray.Dataset, Comparison, str or Path
        Results of a sweep, of served models or of wafers, a grid of kernels (``roofline``), a
        sensitivity, or a comparison with measured runs (``accuracy``); or the file of one.
    kind : str
        ``pareto``, ``breakdown``, ``memory``, ``heatmap``, ``scaling``, ``roofline``,
        ``pipeline``, ``sensitivity`` or ``accuracy``.
    width : {"column", "page"} or float
        3.3 or 7 inches, or a width in inches.
    title : str
        Nothing stands above the figure without one.
    **options
        As of ``perfmodel plot KIND``, which docs/plots.md lists: ``x``, ``y``, ``value``,
        ``group``, ``where``, ``everything``, ``top``, ``by``, ``each``, ``pick``, ``band``,
        ``log``, ``stages``, ``hardware``.

    Returns
    -------
    Plot
        ``save(path)`` draws it, ``save_data(path)`` writes its numbers.

    Raises
    ------
    DataError
        An unknown kind, option or variable, results of something else, or nothing to draw.

    Examples
    --------
    >>> from perfmodel import plot
    >>> plot("sweep.nc", "pareto", x="memory_total").save("pareto.svg")  # doctest: +SKIP
    """
    from perfmodel.report.plots.marks import paper_of

    if kind not in KINDS:
        raise DataError(f"no figure '{kind}'{did_you_mean(kind, KINDS)}")
    for name in options:
        if name not in KINDS[kind].options:
            hint = did_you_mean(name, KINDS[kind].options)
            raise DataError(f"a figure '{kind}' has no option '{name}'{hint}")
    paper = paper_of(width)
    source: Any = results
    if isinstance(results, str | Path):
        source = _found(KINDS[kind].opened)(results)
    elif hasattr(results, "to_netcdf"):
        from perfmodel.base.table import from_xarray

        source = from_xarray(source)
    described = _found(KINDS[kind].home)(source, paper=paper, **options)
    about = str(getattr(source, "attrs", {}).get("title", ""))
    if about and not any(about in note for note in described.notes):
        described = replace(described, notes=(about, *described.notes))
    return replace(described, title=title) if title else described


def _found(home: str) -> Callable[..., Any]:
    module, _, name = home.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def open_operations(path: str | Path) -> Table:
    """Open a sweep, or a grid of kernels.

    Raises
    ------
    DataError
        The file is missing or is neither.
    """
    from perfmodel.store.netcdf import read_netcdf
    from perfmodel.store.results import open_table

    source = user_path(path)
    if source.is_file():
        table = read_netcdf(source)
        if "kernel" in table.attrs:
            return table
    return open_table(path)
