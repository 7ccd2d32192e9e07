"""The corrected dialect of AICB texts, in what AICB gets wrong."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.export.text import LAYERNORM, corrected_workload
from tests.training.step.cases import HIDDEN, LLAMA_LAYER, STATE

# The corrected dialect, in what AICB gets wrong.


def rows_named(file, name):
    rows = np.flatnonzero(file.name == name)
    assert len(rows), name
    return rows


def test_corrected_dialect_has_the_gated_matrix_and_grouped_queries(small_workload):
    file = corrected_workload(small_workload("llama", data_parallel=4, tensor_parallel=2))
    total = 4 * LLAMA_LAYER + 2 * 8192 * HIDDEN + HIDDEN
    norms = (4 * 2 + 1) * HIDDEN
    held = (total - norms) / 2 + norms  # norms are on both tensor ranks
    gather = int(file.weight_gradient.size[rows_named(file, "grad_gather")[0]])
    reduce = int(file.weight_gradient.size[rows_named(file, "grad_param_comm")[0]])
    assert (gather, reduce) == (2 * held, 4 * held)
    # AICB: 2 B of every parameter; here fp32 gradients of the norms.
    layernorm = rows_named(file, LAYERNORM)
    assert file.input_gradient.size[layernorm].tolist() == [4 * norms]


def test_corrected_dialect_has_the_output_matrix_and_both_passes(small_workload):
    file = corrected_workload(
        small_workload("llama", tensor_parallel=2, sequence_parallel=False, micro_batches=2)
    )
    assert len(rows_named(file, "final_column")) == 2  # one a micro-batch
    for name in ("attention_layer", "mlp_layer"):
        rows = rows_named(file, name)
        assert len(rows) == 2 * 4
        for phase in (file.forward, file.input_gradient):
            assert set(phase.collective[rows].tolist()) == {"ALLREDUCE"}
            assert set(phase.size[rows].tolist()) == {STATE}
        forward, backward = (
            phase.compute_time[rows].sum()
            for phase in (file.forward, file.input_gradient)
        )  # fmt: skip
        assert backward != forward


def test_corrected_dialect_has_context_parallelism(small_workload):
    file = corrected_workload(
        small_workload("llama", context_parallel=2, context_parallel_kind="all_to_all")
    )
    assert file.header.expert_parallel == 2
    words = set(file.forward.collective.tolist())
    assert words == {"NONE", "ALLTOALL_EP"}
    half = corrected_workload(small_workload("llama", context_parallel=1))
    rows = [rows_named(item, "attention_layer") for item in (file, half)]
    times = [item.forward.compute_time[r].sum() for item, r in zip((file, half), rows, strict=True)]
    assert times[0] < 0.75 * times[1]


def test_texts_that_nobody_could_hold_are_refused(small_workload, monkeypatch):
    monkeypatch.setattr("perfmodel.workloads.export.text.MOST_LINES", 10)
    with pytest.raises(StrategyError, match=r"micro-batches make a text of .* lines; at most 10"):
        corrected_workload(small_workload("llama", data_parallel=4, tensor_parallel=2))
