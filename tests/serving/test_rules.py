"""Rules of deployments, each with its reason."""

from __future__ import annotations

import pytest

from perfmodel.kernels.serving.tables import STATES
from perfmodel.serving.enumerate import deployments_from_rows
from perfmodel.serving.rules import KERNEL_STATES, STATUS_NAMES, STATUS_REASONS


@pytest.mark.parametrize(
    ("model", "row", "name"),
    [
        ("llama-3.1-8b", {"tensor_parallel": 64}, "heads_not_divisible"),
        ("gpt-oss-120b", {"tensor_parallel": 1, "attention_data_parallel": 7}, "width_not"),
        ("llama-3.1-8b", {"pipeline_parallel": 33}, "too_few_layers"),
        ("mixtral-8x7b", {"attention_data_parallel": 16, "expert_parallel": 16}, "too_few_experts"),
        ("deepseek-r1", {"expert_parallel": 2}, "expert_group_mismatch"),
        ("llama-3.1-8b", {"draft_length": 1, "acceptance": 1.0}, "no_draft_modules"),
        (
            "llama-3.1-8b",
            {"prefill_workers": 1, "prefill_tensor_parallel": 3},
            "heads_not_divisible",
        ),
        ("deepseek-r1", {"draft_length": 1, "acceptance": 1.0}, "valid"),
    ],
)
def test_the_first_broken_rule_is_the_status(model, row, name):
    grid = deployments_from_rows(model, [row])
    assert STATUS_NAMES[int(grid.status[0])].startswith(name)


def test_prefill_workers_count_among_the_devices():
    row = {"tensor_parallel": 4, "prefill_workers": 2, "prefill_tensor_parallel": 2}
    assert deployments_from_rows("llama-3.1-8b", [row], devices=8).status[0] == 0
    assert deployments_from_rows("llama-3.1-8b", [row], devices=7).status[0] == 1


def test_every_code_has_a_reason_and_kernel_states_their_names():
    assert STATUS_NAMES.keys() == STATUS_REASONS.keys()
    assert tuple(STATUS_NAMES[code] for code in KERNEL_STATES) == STATES
