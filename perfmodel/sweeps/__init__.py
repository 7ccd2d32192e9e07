"""Grids as labelled datasets.

Strategies × hardware, single kernels, collectives; stored, reopened, ranked, explained, drawn.
Named in the plural: `perfmodel.sweep` is the function.
"""
