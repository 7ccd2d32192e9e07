"""Rows of operations: what follows from what, and layers that do the same."""

from __future__ import annotations

from perfmodel.wafer.nodes.rows import KINDS, OperationRows


def test_a_layer_again() -> None:
    rows = OperationRows(2)
    given = rows.add("input", "tokens", "barrier")
    one = rows.add("decode0", "wq", "linear", (given,), macs=3.0)
    rows.add("decode0", "wo", "linear", (one, given), macs=4.0)
    copies = rows.again(1, 3, "decode1", {given: 2})
    assert copies == {0: 2, 1: 3, 2: 4}
    assert [one.name for one in rows.operations[3:]] == ["decode1.wq", "decode1.wo"]
    assert rows.operations[4].needs == (3, 2)
    assert rows.operations[4].values["flops"] == 8.0
    assert not rows.operations[4].joins
    assert {one.kind for one in rows.operations} <= set(KINDS)
