"""Parameters of files as transformers counts them."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

from oracle import meta


def counted(path: Path) -> dict[str, Any]:
    """Return one file's counts as a JSON object, or why there are none."""
    try:
        found = meta.count(meta.read(path))
    except (OSError, ValueError, meta.NoOracleError) as error:
        return {"config": path.name, "no_oracle": str(error)}
    return {"config": path.name, **dataclasses.asdict(found)}


def grouped(layers: list[int] | tuple[int, ...]) -> str:
    """Return per-layer totals with runs of equal ones as "3 × 100"."""
    runs = ((total, len(list(run))) for total, run in itertools.groupby(layers))
    return ", ".join(f"{number} × {total:,}" for total, number in runs)


def line(entry: dict[str, Any]) -> str:
    """Return one file's counts for people."""
    if "no_oracle" in entry:
        return f"{entry['config']}: no oracle ({entry['no_oracle']})"
    active = "varies" if entry["active"] is None else f"{entry['active']:,}"
    towers = f", towers {entry['towers']:,}" if entry["towers"] else ""
    return (
        f"{entry['config']} ({entry['architecture']}): {entry['text']:,} parameters, "
        f"active {active}{towers}; layers {grouped(entry['layers'])}"
    )


def run(options: Any) -> int:
    """Print the counts of files; exit code 1 where one could not be counted."""
    entries = [counted(path) for path in options.files]
    print(json.dumps(entries, indent=1) if options.json else "\n".join(map(line, entries)))
    return int(any("no_oracle" in entry for entry in entries))
