"""Execution traces made from other things: task graphs, recordings, projections."""
