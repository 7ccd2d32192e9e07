"""What every measured kind does with a row's time."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import DataError
from perfmodel.measured.cases import measured_time
from perfmodel.measured.rows import MeasuredRow


def test_times_beyond_all_machines_are_refused():
    assert measured_time(MeasuredRow({"time_us": "5"}, "x.csv", 2)) == pytest.approx(5e-6)
    for text in ("5e-324", "1e90"):
        with pytest.raises(DataError, match=r"x\.csv, line 2, column 'time_us': .* to 1e\+15"):
            measured_time(MeasuredRow({"time_us": text}, "x.csv", 2))
