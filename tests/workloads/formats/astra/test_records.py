"""Records of ASTRA-sim's networks and systems: what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.workloads.twins.astra.collective import (
    AstraSystem,
    mesh_shape,
    uniform_system,
)
from tests.workloads.twins.astra.networks import MIB, one_dimension, time_of, two_dimensions


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"topology": ("Rign",)}, "unknown topology of dimension 0 'Rign'; did you mean Ring"),
        ({"npus_count": (1,)}, "npus_count of dimension 0 is 1; it should be a whole number >= 2"),
        ({"npus_count": (4, 4)}, "npus_count has 2 entries, but topology has 1"),
        ({"bandwidth_gib_per_second": (math.nan,)}, "bandwidth of dimension 0 is nan"),
        ({"bandwidth_gib_per_second": (0.0,)}, "should be a finite number > 0"),
        ({"latency_nanoseconds": (-1.0,)}, "latency of dimension 0 is -1.0"),
        ({"latency_nanoseconds": (math.inf,)}, "latency of dimension 0 is inf"),
        ({"topology": ()}, "at least one dimension"),
    ],
)
def test_wrong_networks_are_refused(change, words):
    with pytest.raises(HardwareError, match=words.replace("(", r"\(")):
        replace(one_dimension(), **change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"all_reduce_implementation": ("rings",)}, "unknown collective implementation 'rings'"),
        ({"all_to_all_implementation": ("direct0",)}, "'direct0'"),
        ({"preferred_dataset_splits": 0}, "preferred_dataset_splits is 0"),
        ({"active_chunks_per_dimension": 1.5}, "active_chunks_per_dimension is 1.5"),
        ({"endpoint_delay_nanoseconds": -1}, "endpoint_delay is -1"),
        ({"endpoint_delay_nanoseconds": 2**31}, "at most 2147483647"),
        ({"peak_performance_teraflops": 10**400}, "peak_performance is 1000"),
        ({"scheduling_policy": "lifo"}, "unknown scheduling_policy 'lifo'; did you mean LIFO"),
        ({"collective_optimization": "none"}, "unknown collective_optimization"),
        ({"local_memory_bandwidth_gb_per_second": 0}, "local_memory_bandwidth is 0"),
    ],
)
def test_wrong_systems_are_refused(change, words):
    with pytest.raises(HardwareError, match=words):
        replace(uniform_system(["ring"]), **change)


def test_endpoint_delay_zero_aborts_as_the_simulator_does():
    with pytest.raises(HardwareError, match="endpoint_delay is 0: ASTRA-sim aborts"):
        time_of(one_dimension(), "ring", "all_reduce", MIB, endpoint_delay_nanoseconds=0)


def test_small_parts_of_the_records():
    assert [mesh_shape(n) for n in (4, 6, 16, 32, 7)] == [(2, 2), (3, 2), (4, 4), (8, 4), (7, 1)]
    assert two_dimensions().devices == 32
    assert isinstance(uniform_system(["ring"]), AstraSystem)
