"""Times of single operations on one device.

The labelled pairs of the kernels: a profile's facts and constants become their columns, arrays
come back. The formulas stand in `kernels`, lists of operations in `operations`.
"""
