"""Compare the physical and the exact answer to the text workloads of the reference runs.

Usage::

    python benchmarks/parity_kinds/modes.py FOLDER [--every N] [--json]

Every distinct configuration (workload, network, system, passes and scales) of
``native_runs.csv`` and ``native_extra.csv`` in FOLDER runs in both modes: with our network
model, and as ASTRA-sim 1.0. The table has the first total time over the second, and how
many configurations each reason is named for.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.errors import FormatError, PerfModelError
from perfmodel.workloads.formats.astra_text_machine import NativeNetwork, NativeSystem
from perfmodel.workloads.twins.astra_text.comparison import ModeComparison, compare_modes

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from parity_kinds.astra_text import DEFAULTS, FILES, network_of, read_rows, system_of, workload_of

FIGURES = ("median", "p10", "p90", "lowest", "highest", "within_2_percent", "within_10_percent")
Configuration = tuple[str, NativeNetwork, NativeSystem, int, float, float, int]


def configurations(folder: Path) -> list[Configuration]:
    """Return the distinct configurations of all rows, in the order of the files.

    Each has workload, network, system, passes, scales of communication and computation,
    and queues per dimension.
    """
    found: dict[Configuration, None] = {}
    for name in FILES:
        for row in read_rows(folder / name):
            cells = DEFAULTS | row
            key = (
                cells["workload"],
                network_of(cells),
                system_of(cells),
                int(cells["passes"]),
                float(cells["comm_scale"]),
                float(cells["compute_scale"]),
                int(cells["queues_per_dim"]),
            )
            found.setdefault(key)
    return list(found)


def compared(folder: Path, chosen: Configuration) -> ModeComparison:
    """Run one configuration in both modes."""
    name, network, system, passes, communication, compute, queues = chosen
    return compare_modes(
        workload_of(folder, name),
        network,
        system,
        passes=passes,
        communication_scale=communication,
        compute_scale=compute,
        queues_per_dimension=queues,
    )


def groups_of(chosen: Configuration) -> Iterator[tuple[str, str]]:
    """Yield the groups to which a configuration belongs: title and value."""
    _, network, system, *_, queues = chosen
    topologies = network.topology
    yield "network", topologies[0] if len(topologies) == 1 else "several dimensions"
    if system.preferred_dataset_splits == 1:
        chunks = "one"
    elif max(system.active_chunks_per_dimension, queues) == 1:
        chunks = "several, one at a time"
    else:
        chunks = "several at once"
    yield "chunks", chunks


def reasons_of(found: ModeComparison) -> set[str]:
    """Return the reasons named for any collective or for the run."""
    named = {name for phase in found.reasons for layer in phase for name in layer}
    return named | set(found.run_reasons)


def statistics_of(ratios: list[float]) -> dict[str, float]:
    """Return count, quantiles and shares of some ratios."""
    values = np.array(ratios)
    apart = np.abs(values - 1.0)
    quantiles = np.quantile(values, (0.5, 0.1, 0.9, 0.0, 1.0)).tolist()
    shares = [float((apart <= bound).mean()) for bound in (0.02, 0.1)]
    return {"count": len(ratios), **dict(zip(FIGURES, [*quantiles, *shares], strict=True))}


def survey(folder: Path, every: int) -> dict[str, Any]:
    """Compare all configurations, or each `every`-th; return the document."""
    known = configurations(folder)
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    reasons: Counter[str] = Counter()
    stopped: Counter[str] = Counter()
    chosen = known[::every]
    for configuration in chosen:
        found = compared(folder, configuration)
        if found.native is None:
            stopped[found.stopped] += 1
            continue
        ratio = found.physical.total_time / (found.native.total_ns * 1e-9)
        for group in (("all", "all"), *groups_of(configuration)):
            ratios[group].append(ratio)
        reasons.update(reasons_of(found))
    if not ratios:
        raise FormatError("no configuration has an exact answer")
    return {
        "distinct_configurations": len(known),
        "run": len(chosen),
        **statistics_of(ratios.pop(("all", "all"))),
        "groups": {
            title: {
                value: statistics_of(members)
                for (own, value), members in ratios.items()
                if own == title
            }
            for title in ("network", "chunks")
        },
        "reasons": dict(reasons.most_common()),
        "stopped": dict(stopped),
    }


def line(label: str, found: dict[str, float]) -> str:
    """Return one line of the table."""
    quantiles = "".join(f"{found[name]:9.3f}" for name in FIGURES[:5])
    shares = "".join(f"{found[name]:9.1%}" for name in FIGURES[5:])
    return f"{label:<24}{found['count']:>6}{quantiles}{shares}"


def main() -> int:
    """Print the comparison; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="with native_runs.csv, workloads/ …")
    parser.add_argument("--every", type=int, default=1, help="only each N-th configuration")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    options = parser.parse_args()
    if options.every < 1:
        parser.error(f"--every is {options.every}; it should be > 0")
    try:
        document = survey(options.folder, options.every)
    except KeyError as error:
        print(f"error: {options.folder}: column {error} is missing", file=sys.stderr)
        return 2
    except (TypeError, ValueError, PerfModelError) as error:
        print(f"error: {options.folder}: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(document, indent=2))
        return 0
    words = ("median", "p10", "p90", "lowest", "highest", "in 2 %", "in 10 %")
    print(f"{'physical / exact':<24}{'runs':>6}" + "".join(f"{word:>9}" for word in words))
    print(line("all", document))
    for title, groups in document["groups"].items():
        print(title)
        for value, found in groups.items():
            print(line(f"  {value}", found))
    print("\nnamed for configurations")
    for name, count in document["reasons"].items():
        print(f"  {name:<24}{count:>6}")
    for reason, count in document["stopped"].items():
        print(f"no exact answer: {count} × {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
