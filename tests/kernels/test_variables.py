"""The variables of datasets: registered once, with units, all of them."""

from __future__ import annotations

from perfmodel.kernels.variables import (
    COST_VARIABLES,
    COSTS,
    MEMORY_COMPONENTS,
    OTHER_VARIABLES,
    STEP_VARIABLES,
    TIME_COMPONENTS,
    VARIABLES,
)


def test_variables_are_registered_once_with_units():
    names = [item.name for item in STEP_VARIABLES + OTHER_VARIABLES + COST_VARIABLES]
    assert len(set(names)) == len(names) == len(VARIABLES | COSTS)
    for item in (VARIABLES | COSTS).values():
        assert item.units in ("s", "1/s", "B", "1", "FLOP", "W", "J", "USD")
        assert len(item.long_name) > 5
    assert set(TIME_COMPONENTS) <= {item.name for item in STEP_VARIABLES if item.units == "s"}
    assert set(MEMORY_COMPONENTS) <= {item.name for item in STEP_VARIABLES if item.units == "B"}


def test_the_variables_of_the_design_are_all_there():
    text = """
    step_time forward_time backward_time recompute_time optimizer_time host_time
    tensor_parallel_exposed context_parallel_exposed expert_parallel_exposed pipeline_exposed
    data_parallel_exposed pipeline_bubble tokens_per_second_per_device model_flops_per_token
    model_flops_utilization hardware_flops_utilization memory_parameters memory_gradients
    memory_optimizer memory_activations memory_buffers memory_reserve memory_total fits status
    tensor_parallel_total context_parallel_total expert_parallel_total pipeline_total
    data_parallel_total energy_per_token cost_per_token goodput
    """
    assert set(text.split()) <= {*VARIABLES, *COSTS}
