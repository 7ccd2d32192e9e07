"""Our mapping of the wafer workload generator's small example beside its own."""

from __future__ import annotations

import json
from typing import Any

from tests.data import WAFER, needed


def test_cores_are_busier_and_bytes_go_less_far(script: Any) -> None:
    """Its attention gives half of the 16 cores contexts of 512 tokens, the others none."""
    code, out, _ = script(
        "wafer_mapping", needed(WAFER), "--tree", "out_small", "--nodes", "0-3", "--json"
    )
    assert code == 0
    found = json.loads(out)
    theirs, ours = found["occupancy"]
    assert theirs < 0.9
    assert ours > 0.97
    for row in found["operations"]:
        assert row["occupancy"][1] is None or row["occupancy"][1] > 0.97
    for key in ("products", "all"):
        theirs, ours = found[key]["byte_hops"]
        assert ours < theirs
    for place in range(2):
        rows = found["operations"]
        assert found["all"]["moved"][place] == sum(row["moved"][place] for row in rows)
