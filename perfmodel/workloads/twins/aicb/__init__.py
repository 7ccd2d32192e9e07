"""AICB workloads: the files that AICB writes for SimAI, for any model and strategy."""
