"""perfmodel kernel: grids of single kernels."""
