"""Other tools' workload files as traces: found out by content, read, converted, described."""
