"""Traces that the tests of exports read: groups by their names."""

from __future__ import annotations

from functools import partial

from perfmodel.workloads.export.chakra import projected_traces

named_traces = partial(projected_traces, numbered_groups=False)
