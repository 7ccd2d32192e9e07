"""Speed of sensitivities: numbers and switches of one strategy settled per second on one core.

Usage: python benchmarks/speed/sensitivity.py [--kind hardware|usual|all] [--json]

`hardware`  every number of the profile but fitted constants
`usual`     those, every fact of the software and switches of the strategy: what the command does
`all`       fitted constants too

Llama 3.1 70B on 256 H100, tensor 8, pipeline 4; elasticities, what-ifs and switches, from loaded
model and profile to the table. The CPU time of this process counts; kernels lie in the cache, or
run uncompiled where that takes less, as on the command line.
"""

from __future__ import annotations

import argparse
import json
import time

from perfmodel import load_framework, load_hardware, load_model
from perfmodel.analysis.case import TrainingCase
from perfmodel.analysis.parameters import KINDS
from perfmodel.analysis.sensitivity import USUAL, sensitivity_table
from perfmodel.analysis.single import one_strategy

ASKED = {"hardware": ("hardware",), "usual": USUAL, "all": KINDS}
RUN = {
    "tensor_parallel": 8,
    "pipeline_parallel": 4,
    "global_batch_size": 512,
    "sequence_length": 8192,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", choices=ASKED, default="usual")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    model = load_model("llama-3.1-70b")
    grid = one_strategy(model, 256, RUN, "megatron")
    case = TrainingCase(model, grid, load_hardware("dgx-h100"), load_framework("megatron"))
    start = time.process_time()
    count = sensitivity_table(case, kinds=ASKED[chosen.kind]).sizes["parameter"]
    seconds = time.process_time() - start
    found = {
        "rate_per_core": count / seconds,
        "unit": "parameters/s",
        "count": count,
        "seconds": seconds,
    }
    if chosen.json:
        print(json.dumps(found))
    else:
        print(f"{count:,} numbers and settings in {seconds:.2f} s: {count / seconds:.1f} /s/core")


if __name__ == "__main__":
    main()
