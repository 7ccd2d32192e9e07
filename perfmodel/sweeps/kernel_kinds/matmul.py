"""Matrix products, grouped ones too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DataError
from perfmodel.base.precisions import OPERANDS, QUANTISED
from perfmodel.sweeps.kernel_kinds.kind import (
    RESIDENT,
    Grid,
    GridAxis,
    Kernel,
    Setting,
    Values,
    timed_columns,
)

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.sweeps.kernel_kinds.kind import Columns, Evaluated


def _gemm(
    hardware: Hardware, part: Columns, precision: str, quantise: bool, **options: Any
) -> Evaluated:
    import numpy as np

    from perfmodel.compute.gemm import GEMM_BOUNDS, gemm_times, quantised_gemm_times

    if quantise and precision in QUANTISED:
        found, passes = quantised_gemm_times(hardware, precision, **part, **options)
    else:
        found = gemm_times(hardware, precision, **part, **options)
        passes = np.zeros(found.time.size)
    columns = timed_columns(found, "tile_m", "tile_n", "split_k") | {"time": found.time + passes}
    return columns | ({"quantise_time": passes} if quantise else {}), GEMM_BOUNDS


def _grouped_gemm(
    hardware: Hardware, part: Columns, precision: str, launches: str, **unused: Any
) -> Evaluated:
    from perfmodel.compute.grouped_gemm import GROUPED_BOUNDS, even_loads, grouped_gemm_times

    for name in ("resident", "weight_copies", "activation_copies"):
        if unused.get(name):
            raise DataError(f"{name} is for products that are not grouped, and for MoE layers")
    loads = even_loads(part["groups"], part["m"])
    found = grouped_gemm_times(hardware, precision, loads, part["n"], part["k"], launches=launches)
    return timed_columns(found), GROUPED_BOUNDS


def _choose_gemm(axes: Values) -> Grid:
    if axes["groups"] == [0]:
        return Grid("gemm", ("precision",), ("m", "n", "k", "batch"), _gemm)
    if 0 in axes["groups"] or axes["batch"] != [1]:
        raise DataError("--groups of 1 and more stand alone: no 0 among them, no --batch")
    long_names = {"m": "rows of A and C of each group"}
    apart, sizes = ("precision", "launches"), ("groups", "m", "n", "k")
    return Grid("grouped gemm", apart, sizes, _grouped_gemm, long_names)


GEMM = Kernel(
    "gemm",
    "Matrix products.",
    (
        GridAxis("m", "rows of A and C", "Rows of A and C (tokens of a linear layer)"),
        GridAxis("n", "columns of B and C", "Columns of B and C (outputs)"),
        GridAxis("k", "inner size", "Inner size (inputs)"),
        GridAxis("batch", "independent products", "Independent products in one launch", 1),
        GridAxis(
            "groups",
            "groups, each with its own B",
            "Groups of a grouped product (experts), each with --m rows and a B of its own; "
            "0: not grouped",
            0,
        ),
        GridAxis(
            "launches",
            "one launch, or one of each group",
            "Launches of a grouped product",
            "one",
            ("one", "each"),
        ),
        GridAxis(
            "precision",
            "number format of A and B",
            "Number formats of A and B",
            "bf16",
            OPERANDS,
        ),
    ),
    (
        Setting(
            "quantise",
            "Count the pass that quantises A, where the format is narrower than 16 bits.",
            True,
            ("--quantise/--no-quantise", "--quantize/--no-quantize"),
        ),
        Setting("output_bytes", "One element of C [B].", 2.0, least=0.0, metavar="B"),
        Setting(
            "steady", "A load of minutes on a warm device (training), not a short benchmark.", False
        ),
        RESIDENT,
        Setting(
            "weight_copies",
            "Calls until the same B comes up again, of what a large cache keeps; 0: B comes "
            "from memory, as inside a model.",
            0,
            least=0,
            metavar="CALLS",
        ),
        Setting(
            "activation_copies",
            "Calls until the same A and C come up again; 0: they come from memory.",
            0,
            least=0,
            metavar="CALLS",
        ),
    ),
    _choose_gemm,
)
