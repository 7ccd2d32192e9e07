"""Fused attention, over all keys or chosen ones, and indexers: tile by tile."""
