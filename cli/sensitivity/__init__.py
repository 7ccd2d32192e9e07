"""perfmodel sensitivity."""
