"""The published runs that this repository holds stay as near as they were read."""

import pytest

from perfmodel.measured.compare import compare_file
from tests.data import NO_BENCHMARKS, PUBLISHED_RUNS

pytestmark = pytest.mark.skipif(not PUBLISHED_RUNS.exists(), reason=NO_BENCHMARKS)


@pytest.fixture(scope="module")
def compared():
    return compare_file("training", PUBLISHED_RUNS).to_json_dict()


def test_every_published_run_is_projected(compared):
    assert compared["count"] == compared["rows"] == 30
    assert compared["coverage"] == 1.0


def test_errors_stay_within_the_first_reading(compared):
    # First reading: median 2.9 %, mean 4.2 %, worst 15.5 % (README.md).
    assert compared["median_absolute_error"] < 0.04
    assert compared["mean_absolute_error"] < 0.06
    assert compared["worst_absolute_error"] < 0.20
