"""perfmodel workload."""
