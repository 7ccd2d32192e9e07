"""A mesh of cores: its workloads by node and core, their time, and the mapping that is best."""
