"""Publication figures of results."""
