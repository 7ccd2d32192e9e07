"""Twins of other tools, oddities included.

ASTRA-sim 2 (`astra`) and 1.0 (`astra_text`), SimAI-Analytical (`simai`), the generators of AICB and
STAGE; `engines` says which of them, or our own models, runs a workload file. Nothing below imports
them: our own projections do not depend on what other tools do.
"""
