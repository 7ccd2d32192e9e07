"""Readers and writers of other tools' workload files, one module per format."""
