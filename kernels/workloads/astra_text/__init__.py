"""ASTRA-sim 1.0's training loop."""
