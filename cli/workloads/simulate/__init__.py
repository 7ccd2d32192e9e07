"""perfmodel simulate."""
