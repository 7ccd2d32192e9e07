"""Kernels whose grids can be asked for: axes, settings, evaluation; a family in each file."""
