"""Pipelines of stages: the order in which ranks work, and when everything happens."""
