"""Times of single operations on given hardware: kernels of one device, collectives on its network.

The labelled pairs of the kernels: a profile's facts and constants, and what `libraries/*.toml` say
of kernel libraries, become their columns, arrays come back. The formulas stand in `kernels`, lists
of operations in `operations`. Of networks, `workloads.links` sees one link by link,
`workloads.schedules` a collective message by message: drawings, oracles, contention.
"""
