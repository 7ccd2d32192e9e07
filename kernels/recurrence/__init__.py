"""Kernels of mixers with a recurrent state, and two numbers by which formulas count, too."""

from __future__ import annotations

SCAN_OPERATIONS = 9.0
"""Operations of Mamba-1 per token, channel and element of its state: ``exp(dt A)`` counted as
one, ``dt A``, ``dt B x`` (2), the recurrence (2) and the sum over the state (2), and the share of
skip and gate (arXiv:2312.00752, section D, counts 9 B L D N)."""

SELECTIVE_CHUNK = 2048.0
"""Tokens that a block of Mamba-1's scan walks over at once: 128 threads of 16 tokens
(state-spaces/mamba ``csrc/selective_scan/selective_scan.cpp``)."""
