"""Numba kernels: arrays and numbers in, arrays and numbers out; nothing of ours is imported here."""
