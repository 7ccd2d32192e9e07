"""Our projections as files of other tools."""
