"""perfmodel topology."""
