"""Times of single operations on one device: the kernels' columns filled from a profile."""
