"""Run execution traces on a network, driven by their dependencies."""
