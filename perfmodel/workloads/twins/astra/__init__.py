"""ASTRA-sim 2.x: collectives of both analytical backends, costs of traces."""
