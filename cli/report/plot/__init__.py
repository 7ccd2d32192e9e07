"""perfmodel plot: pictures of workloads."""
