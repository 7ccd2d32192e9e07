"""Traces driven by their dependencies."""
