"""Execution traces in time, driven by their dependencies.

On a hardware profile, or with costs that `parity` hands in. Reading files is `convert`, the event
loop itself `kernels.trace`. `perfmodel.simulate` is the function.
"""
