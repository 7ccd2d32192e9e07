"""Fused attention, tile by tile."""
