"""ASTRA-sim 1.0: workload text, network and system files."""
