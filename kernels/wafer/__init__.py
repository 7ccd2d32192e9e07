"""Meshes of cores: routes, phases of communication, products, collectives, traces."""
