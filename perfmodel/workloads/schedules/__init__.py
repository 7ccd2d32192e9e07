"""Collectives message by message, and what they cost laid on links."""
