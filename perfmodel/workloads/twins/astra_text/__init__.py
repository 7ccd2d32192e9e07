"""The training loops of ASTRA-sim 1.0 text workloads."""
