"""Numba kernels: arrays and numbers in, arrays and numbers out.

Nothing of ours is imported here but other kernels.
"""
