"""Other tools' workload files: read, written, converted and run."""
