"""Workloads that the tests of exports write out: those of the tests of projected steps."""

from tests.training.step.conftest import made_workloads, small_workload, workload_of  # noqa: F401
