"""AICB's four files: workload text, CSV, AIOB times, Vidur CSV."""
