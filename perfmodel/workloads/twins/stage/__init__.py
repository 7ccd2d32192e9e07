"""STAGE workloads: the traces of its generator, from the same arguments."""
