"""perfmodel diff."""
