"""What stages send each other: whole hidden states, or shares that the next stage gathers."""

from __future__ import annotations

import pytest

from perfmodel.network.collectives import collective_times
from perfmodel.software.framework import load_framework
from perfmodel.training.boundary import arrival_gather, sent_bytes
from tests.training.gpt import keys_of

PLAIN = {"tensor_parallel": 8, "pipeline_parallel": 4, "data_parallel": 2, "micro_batches": 8,
         "sequence_parallel": False}  # fmt: skip


def both(**fields):
    """The same step with whole hidden states sent, and with shares."""
    keys = keys_of(**fields)
    return keys, [load_framework("megatron-2021", scatters_sends=it) for it in (False, True)]


@pytest.mark.parametrize(
    ("fields", "share", "gathers"),
    [
        ({"tensor_parallel": 8, "sequence_parallel": False}, 1 / 8, True),
        ({"tensor_parallel": 8, "sequence_parallel": True}, 1.0, False),  # shares already
        ({"tensor_parallel": 1}, 1.0, False),
    ],
)
def test_ranks_send_shares_of_what_each_of_them_holds(fields, share, gathers, small_dense, a100):
    keys, (whole, shares) = both(**fields)
    sent = float(sent_bytes(small_dense, keys, whole)[0])
    assert float(sent_bytes(small_dense, keys, shares)[0]) == sent * share
    found = arrival_gather(small_dense, keys, a100, shares)
    assert (float(found.time[0]) > 0) == gathers
    assert float(arrival_gather(small_dense, keys, a100, whole).time[0]) == 0
    if gathers:
        assert found.time[0] == collective_times(a100, "all_gather", sent, 8)


def test_adapters_carry_every_byte_once(project, a100, small_dense):
    """Narayanan et al. 2021, section 4.1: 1/t over the adapters, and a gather inside the node."""
    _, frameworks = both()
    whole, shares = (project(small_dense, a100, framework=it, **PLAIN) for it in frameworks)
    moved = {name for name in whole if whole[name] != shares[name]}
    assert {"pipeline_exposed", "pipeline_total", "step_time"} <= moved
    assert not any(name.startswith("memory_") or name == "pipeline_bubble" for name in moved)
    faster = whole["pipeline_exposed"] / shares["pipeline_exposed"]
    assert 2 < faster < 8
    saved = whole["pipeline_exposed"] - shares["pipeline_exposed"]
    assert whole["step_time"] - shares["step_time"] == pytest.approx(saved, rel=1e-9)
