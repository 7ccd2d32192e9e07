"""ASTRA-sim's network.yml and system.json."""
