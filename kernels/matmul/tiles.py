"""Candidate tiles and splits of a matrix product, as GPU libraries ship them."""

from __future__ import annotations

import numpy as np

# Output tiles of one compute unit (rows of C, columns of C). The first
# POWER_OF_TWO_TILES are in every library; the rest came with kernel generators
# that offer multiples of 32 (cuBLAS since Hopper, hipBLASLt).
_POWER_OF_TWO = (
    (256, 256),
    (256, 128),
    (128, 256),
    (128, 128),
    (256, 64),
    (64, 256),
    (128, 64),
    (64, 128),
    (64, 64),
    (256, 32),
    (32, 256),
    (128, 32),
    (32, 128),
    (64, 32),
    (32, 64),
    (128, 16),
    (16, 128),
    (64, 16),
    (16, 64),
    (32, 32),
    (32, 16),
    (16, 32),
)
_FINE = (
    (256, 192),
    (192, 256),
    (192, 128),
    (128, 192),
    (192, 192),
    (160, 128),
    (128, 160),
    (224, 128),
    (128, 224),
)
POWER_OF_TWO_TILES = len(_POWER_OF_TWO)
TILES = np.array(_POWER_OF_TWO + _FINE, dtype=np.float64)

# Panels of C that a systolic core keeps in its scratchpad (vector memory, state
# buffer); the compiler walks them in blocks of the array's own size. The last one is
# for ideal devices that read every operand once.
PANELS = np.array(
    [(side * a, side * b) for side in (256, 512, 1024, 2048) for a, b in ((1, 1), (2, 1), (1, 2))]
    + [(2**20, 2**20)],
    dtype=np.float64,
)

# Parts into which k may be cut, one unit each, with a reduction afterwards.
SPLITS = np.array([1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32], dtype=np.float64)
