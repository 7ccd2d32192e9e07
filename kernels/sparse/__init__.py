"""Attention over chosen keys: indexer logits and sparse attention, tile by tile."""
