"""Files that ``perfmodel workload`` writes and shows."""

from __future__ import annotations

import json
import shlex
from typing import Any

from click.testing import Result

from tests.cli.running import run

STAGE = shlex.split(
    "--dp 2 --tp 2 --sp 1 --pp 2 --num-stacks 2 --dmodel 64 --dff 128 --head 4 --seq 32 "
    "--batch 4 --din 32 --dout 32"
)
# An ASTRA-sim text of one layer.
LAYER = "DATA\n1\nlayer\t-1\t1000\tNONE\t0\t2000\tNONE\t0\t3000\tALLREDUCE\t1048576\t10\n"
# A ring of 4 in the files of ASTRA-sim 1.0.
NATIVE_NETWORK = {
    "topology-name": "Hierarchical",
    "topologies-per-dim": ["Ring"],
    "dimension-type": ["N"],
    "dimensions-count": 1,
    "units-count": [4],
    "links-count": [2],
    "link-latency": [500],
    "link-bandwidth": [25],
    "nic-latency": [0],
    "router-latency": [0],
    "hbm-latency": [500],
    "hbm-bandwidth": [370],
    "hbm-scale": [0],
}
NATIVE_SYSTEM = """\
scheduling-policy: LIFO
endpoint-delay: 10
active-chunks-per-dimension: 1
preferred-dataset-splits: 4
boost-mode: 0
all-reduce-implementation: ring
all-gather-implementation: ring
reduce-scatter-implementation: ring
all-to-all-implementation: ring
collective-optimization: baseline
"""


def workload(*arguments: str) -> Result:
    result = run("workload", *arguments)
    assert result.exit_code == 0, result.stderr
    return result


def shown(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(workload("show", *arguments, "--json").stdout)
    assert found["schema_version"] == "1"
    assert found["workload"] == arguments[0]
    return found
