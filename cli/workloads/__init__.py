"""Commands of the workloads wing."""
