"""What may be chosen of a model on a mesh of cores: one row per field.

Imports nothing heavy, so that the command line can read it at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.kernels.wafer.columns import CACHE_LAYOUTS
from perfmodel.kernels.wafer.products import PRODUCTS
from perfmodel.kernels.wafer.reduce import ALGORITHMS
from perfmodel.strategy.fields import StrategyField

MOST_SIDE = 2**14
MOST_TOKENS = 2**27

MAPPING_FIELDS: tuple[StrategyField, ...] = (
    StrategyField("grid_rows", "grid", "int", 1, "rows of cores of a region", maximum=MOST_SIDE),
    StrategyField(
        "grid_columns", "grid", "int", 1, "columns of cores of a region", maximum=MOST_SIDE
    ),
    StrategyField(
        "regions",
        "regions",
        "int",
        0,
        "pipeline regions that share the layers; 0: as many as the mesh holds",
        minimum=0,
        maximum=2**20,
    ),
    StrategyField(
        "context",
        "context",
        "int",
        4096,
        "tokens of the prompt, or those that a decoded token sees",
        maximum=MOST_TOKENS,
    ),
    StrategyField("batch", "batch", "int", 1, "sequences at once", maximum=2**20),
    StrategyField(
        "collective",
        "collective",
        "choice",
        "two_level",
        "how sums over a column of cores are made",
        choices=ALGORITHMS,
    ),
    StrategyField(
        "product",
        "product",
        "choice",
        "mesh_gemm",
        "how tiles of a product of matrices meet",
        choices=PRODUCTS,
    ),
    StrategyField(
        "cache_layout",
        "cache-layout",
        "choice",
        "shifted",
        "keys and values over all rows of cores, or concatenated on one",
        choices=CACHE_LAYOUTS,
    ),
)
"""A mapping's fields; ``grid`` names the first two at once."""

FIELD_BY_NAME: Mapping[str, StrategyField] = {spec.name: spec for spec in MAPPING_FIELDS}
AXES = ("grid", *(spec.name for spec in MAPPING_FIELDS[2:]))
