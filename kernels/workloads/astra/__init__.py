"""ASTRA-sim 2.x, phase by phase."""
