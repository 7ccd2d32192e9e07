"""Look for training steps that break a law of physics, as many as one asks for.

::

    python benchmarks/physics.py --count 100000
    python benchmarks/physics.py --count 5000 --seed 7 --law weak --hardware tpu7x-pod

The laws, their bounds and the random strategies are those of `tests/properties/physics.py`, of
which `tests/properties/test_physics.py` asks fewer. Prints, law by law, how many steps were
compared, how many bend it at all, the worst, its bound, and where the worst is. Exit status 1
where a bound is exceeded.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.properties.physics import LAWS, ROUNDING, draw_case

PER_CASE = 100  # strategies that are priced together


def main() -> int:
    """Examine the laws and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=2000, help="random strategies that are drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--law", default="", help="part of the names of the laws to examine")
    for what in ("model", "hardware", "framework"):
        parser.add_argument(f"--{what}", help="by name; drawn where not given")
    options = parser.parse_args()
    names = ("model", "hardware", "framework")
    fixed = {name: getattr(options, name) for name in names if getattr(options, name)}
    laws = [law for law in LAWS if options.law in law.name]
    found: dict[str, list[tuple[float, str]]] = {law.name: [] for law in laws}
    compared = dict.fromkeys(found, 0)
    rng = np.random.default_rng(options.seed)
    for _ in range(-(-options.count // PER_CASE)):
        case = draw_case(rng, PER_CASE, **fixed)
        if not case.columns["tensor_parallel"].size:
            continue
        base = case.project()
        for law in laws:
            rows, broken = law.measure(case, base)
            compared[law.name] += rows.size
            for row, size in zip(rows.tolist(), broken.tolist(), strict=True):
                if not size <= ROUNDING:
                    found[law.name].append((size, f"{case.name}: {case.row(row)}"))
    failed = False
    print("| law | compared | bent | worst | bound |\n|---|---:|---:|---:|---:|")
    for law in laws:
        worst = max(found[law.name], default=(0.0, ""))
        failed |= not worst[0] <= law.bound
        numbers = f"{compared[law.name]:,} | {len(found[law.name]):,} | {worst[0]:.3g}"
        print(f"| {law.name} | {numbers} | {law.bound:.3g} |")
        if not worst[0] <= law.bound or (options.law and worst[1]):
            print(f"  {worst[1]}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
