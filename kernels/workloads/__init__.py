"""Kernels of the workloads wing: traces, links, twins of simulators."""
