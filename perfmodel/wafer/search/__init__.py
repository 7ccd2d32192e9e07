"""The best mapping: of a model on a mesh of cores, and of groups of nodes on a wafer."""
