"""A model on a mesh of cores: arguments of the closing kernel.

A *part* is what one step of a layer does on all cores of a region: a product, or a sum of one
number per token. A *mapping* says which cores, how many regions, and by which algorithms.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from perfmodel.kernels.variables import read_variables

if TYPE_CHECKING:  # the command line reads the names here before it needs arrays
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

PRODUCT, SCORES, VALUES, SUM = range(4)
PART_KINDS = ("product", "scores", "values", "sum")
"""A product with weights, queries with keys, weights of attention with values, a sum alone."""

DECODE, PREFILL = range(2)
PHASES = ("decode", "prefill")

SHIFTED, ROW = range(2)
CACHE_LAYOUTS = ("shifted", "row")
"""Keys and values over all rows of cores, or concatenated on one."""


class MeshParts(NamedTuple):
    """Parts of all kinds of layers, in the order in which they run; arrays of shape (parts,).

    Attributes
    ----------
    kind : array of int
        `PRODUCT` ... `SUM`.
    k, n : arrays
        Inputs and outputs of a token; the context stands for n of `SCORES` and k of `VALUES`.
    copies, visited : arrays
        Equal products (experts), and those that a token visits.
    joined : array of int
        1 where the sum over cores is made with that of the next part.
    merged : array of int
        1 where outputs of visited copies add up.
    passes : array
        Elementwise operations on every output, or of `SUM` on each of the k numbers summed.
    window : array
        Most tokens that a query sees; 0 for all.
    first : array of int, shape (kinds of layers + 1,)
        First part of every kind; the last kind is what follows all layers, on the last token.
    cache : array, shape (kinds of layers, 2)
        Widths of what a token leaves in the cache: keys, values.
    layers : array of int, shape (layers,)
        Kind of every layer.
    hidden : float
        Width of what passes between layers.
    beside : float
        Weights beside the layers: token table, output matrix.
    """

    kind: Integers
    k: Floats
    n: Floats
    copies: Floats
    visited: Floats
    joined: Integers
    merged: Integers
    passes: Floats
    window: Floats
    first: Integers
    cache: Floats
    layers: Integers
    hidden: float
    beside: float


class MeshMappings(NamedTuple):
    """Mappings; arrays of shape (mappings,).

    Attributes
    ----------
    rows, columns : arrays
        Cores of a region.
    regions : array
        Pipeline regions; 0 for as many as the mesh holds, or as there are layers.
    context : array
        Tokens of the prompt, or those that a decoded token sees.
    batch : array
        Sequences at once.
    collective, product, cache_layout : arrays of int
        Place in `reduce.ALGORITHMS`, `products.PRODUCTS`, `CACHE_LAYOUTS`.
    """

    rows: Floats
    columns: Floats
    regions: Floats
    context: Floats
    batch: Floats
    collective: Integers
    product: Integers
    cache_layout: Integers


class MeshDevice(NamedTuple):
    """Numbers of a mesh as the closing kernel wants them.

    Attributes
    ----------
    rate, peak : float
        Multiply-adds of a core per cycle, sustained and at most.
    sram, sram_read, sram_write : float
        Free memory of a core [B]; [B/cycle].
    link_width, hop, ramp, stage : float
        [B/cycle]; cycles of a hop, of a ramp, and what software adds to a dependent message.
    routes : float
        That a router holds; 0: any number.
    loop_issue, vector_issue, element_cycles : float
        Of a loop, a vector instruction, an elementwise operation on one number [cycles].
    clock : float
        [Hz].
    cores, rows, columns : float
        Of a chip.
    chips, chip_bandwidth, chip_latency : float
        Meshes side by side, which regions may be on; [B/s], [s].
    element, weight, cache : float
        Bytes of an activation, a weight and a number of the cache [B].
    """

    rate: float
    peak: float
    sram: float
    sram_read: float
    sram_write: float
    link_width: float
    hop: float
    ramp: float
    stage: float
    routes: float
    loop_issue: float
    vector_issue: float
    element_cycles: float
    clock: float
    cores: float
    rows: float
    columns: float
    chips: float
    chip_bandwidth: float
    chip_latency: float
    element: float
    weight: float
    cache: float


PART_ROWS = (
    "compute_time",
    "sram_time",
    "issue_time",
    "network_time",
    "link_time",
    "macs",
    "useful_macs",
)
"""Of one part on a region: cycles of multiply-adds, what SRAM adds to them, issue, exposed
network, and of the busiest link; multiply-adds of the busiest core and of all."""

ROW_VARIABLES, OTHER_VARIABLES, PART_VARIABLES = read_variables(
    Path(__file__).with_name("variables.csv")
).values()
"""Over mapping, hardware and phase, in the order of the closing kernel; what follows from them; of
one phase, over mapping, hardware and part."""
CLOSED_ROWS = tuple(variable.name for variable in ROW_VARIABLES)

VALID, BEYOND_MESH, REGIONS_BEYOND_MESH, BEYOND_SRAM, CACHE_BEYOND_SRAM = range(5)
