"""Closes operations as a training step.

Which stage holds what, memory of parts, the tables of the fused pass in `kernels.step`, and the
projection of a grid on one device. Labels come in `sweeps`.
"""
