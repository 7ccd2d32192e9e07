"""The step of one strategy, told: what every rank runs, operation by operation, and when."""
