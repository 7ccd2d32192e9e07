"""Names, units and short names of serving results."""

from __future__ import annotations

from perfmodel.kernels.serving.tables import ROWS
from perfmodel.kernels.serving.variables import ALIASES, ROW_VARIABLES, TIME_COMPONENTS, VARIABLES


def test_rows_are_those_of_the_kernel_in_its_order_and_then_the_status():
    assert (*(item.name for item in ROW_VARIABLES), "status") == ROWS._fields


def test_short_names_mean_variables():
    assert set(ALIASES.values()) <= VARIABLES.keys()
    assert ALIASES["ttft_p95"] == "time_to_first_token_p95"
    assert ALIASES["tpot"] == "time_per_output_token_mean"
    assert not ALIASES.keys() & VARIABLES.keys()
    assert set(TIME_COMPONENTS) <= VARIABLES.keys()
