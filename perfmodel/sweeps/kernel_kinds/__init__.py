"""Kernels by kind: their axes, their settings, and how grids of them are evaluated."""
