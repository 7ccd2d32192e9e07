"""Our projections as files of other tools.

One program of blocks, written as Chakra traces, ASTRA-sim text or AICB text. Files of other tools'
own generators, quirks included, are `parity`.
"""
