"""The best of spaces that are too large to be swept."""
