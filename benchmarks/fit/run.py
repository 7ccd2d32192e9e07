"""Fit the constants of the families that ship again, each to the rows that families.toml selects.

    python benchmarks/fit/run.py DATA [--family NAME …] [--fit ID …] [--sample N] [--write] [--json]

DATA is the folder with ``measured/``, ``primus/`` and ``aicb/``. Nothing is fitted here: every
line is one call of `perfmodel.measured.calibrate.calibrate_family`, from the priors, and prints
as a row of a table: rows, median error with the constants that ship and with the fitted ones,
and the constants that would move by more than one standard deviation and a tenth.
``--write`` puts the fitted values into ``hwprofiles/<family>.toml`` and ``hwprofiles/fits.toml``.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from perfmodel.base.errors import PerfModelError
from perfmodel.base.files import atomic_path
from perfmodel.hwprofiles.family import Family, load_family
from perfmodel.hwprofiles.loader import FOLDER
from perfmodel.measured.calibrate import (
    Calibration,
    Parameter,
    calibrate_family,
    fitted_family,
    judge_family,
)
from perfmodel.measured.calibration import constant_line, entry_lines, fit_entry, fitted_values
from perfmodel.measured.problem import MeasuredTable, calibrated_kind, fitted_keys
from perfmodel.measured.rows import read_rows

SELECTION = Path(__file__).with_name("families.toml")
SCRIPT = "benchmarks/fit/run.py"
SAMPLE = 400
FEWEST = 20
"""Rows that make a band."""
MOVED = 0.1
ADAPTER_PEAK, NODE_PEAK = 48.5e9, 388e9  # B/s by which SimAI multiplies its ratios
DEVICES = 8  # of a node there


def bus_bandwidth_rows(path: Path, folder: Path) -> Path:
    """Write SimAI's ratios of the adapters' peak as measured all-gathers; return the file."""
    rows: list[list[Any]] = [["hardware", "op", "n_gpus", "nodes", "bytes", "time_us"]]
    _, lines = read_rows(path, ("table", "column", "msg_bytes", "ratio_of_peak_busbw"))
    for line in lines:
        column, size = line.text("column"), line.positive("msg_bytes")
        counts = [int(number) for number in re.findall(r"\d+", column)]
        ratio = line.positive("ratio_of_peak_busbw")
        if line.text("table") != "nic" or not counts or not size or not ratio:
            continue
        nodes = counts[0]
        single = column.startswith(("Multi", "Muiti"))  # one device of each node; spelt so
        members, peak = (nodes, ADAPTER_PEAK) if single else (DEVICES * nodes, NODE_PEAK)
        time = size / (ratio * peak) * (members - 1) / members
        rows.append(["dgx-h100", "all_gather", members, nodes, int(size), time * 1e6])
    found = folder / path.name
    with found.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)
    return found


def table(data: Path, rows: Mapping[str, str], folder: Path) -> MeasuredTable:
    """Return the rows of one set."""
    file = data / rows["file"]
    if file.name == "busbw_ratio_tables.csv":
        file = bus_bandwidth_rows(file, folder)
    return MeasuredTable(str(file), rows["kind"], rows.get("where"))


def keys_of(family: Family, tables: Sequence[MeasuredTable], patterns: Sequence[str]) -> list[str]:
    """Return the constants that patterns mean: by name any, with a * those that are adjustable."""
    kind = calibrated_kind(tables[0].kind)
    entries = family.calibration[kind.calibration]
    found = [
        key
        for pattern in patterns
        for key in fitted_keys(kind, entries)
        if key == pattern or (entries[key].adjustable and fnmatch(key, pattern))
    ]
    return [key for key in dict.fromkeys(found) if entries[key].low < entries[key].high]


def with_priors(
    family: Family, tables: Sequence[MeasuredTable], priors: Mapping[str, float]
) -> Family:
    """Return the family with other priors of some constants."""
    group = calibrated_kind(tables[0].kind).calibration
    entries = family.calibration[group]
    changed = {key: replace(entries[key], prior=value) for key, value in priors.items()}
    return replace(family, calibration={**family.calibration, group: {**entries, **changed}})


def fits(
    data: Path, chosen: Sequence[str], ids: Sequence[str], sample: int, folder: Path
) -> Iterator[tuple[str, str, Calibration]]:
    """Yield family, id and what was found, one fit after the other."""
    selection = tomllib.loads(SELECTION.read_text(encoding="utf-8"))
    families: dict[str, Family] = {}
    for step in selection["fit"]:
        tables = [table(data, selection["rows"][name], folder) for name in step["rows"]]
        for name, fit in step["ids"].items():
            if (chosen and name not in chosen) or (ids and fit not in ids):
                continue
            family = families.get(name) or load_family(name)
            if step.get("bands"):
                found = judge_family(load_family(name), tables)
                bands = {key: band for key, band in found.uncertainty.items() if band[1] >= FEWEST}
                yield name, fit, replace(found, uncertainty=bands)
                continue
            family = with_priors(family, tables, step.get("priors", {}))
            keys = keys_of(family, tables, step.get("keys", ["*"]))
            found = calibrate_family(
                family, tables, only=keys, from_prior=True, limit=sample, fold_count=0
            )
            kept = tuple(p for p in found.parameters if p.key not in step.get("aside", ()))
            found = replace(found, parameters=kept)
            families[name] = fitted_family(found)
            yield name, fit, found


def moved(found: Calibration) -> list[Parameter]:
    """Return the constants that ship with another value than the fit's."""
    return [
        item
        for item in found.parameters
        if abs(item.after - item.before) > max(item.uncertainty, MOVED * abs(item.before))
    ]


def line(family: str, fit: str, found: Calibration) -> str:
    """Return one row of the table of docs/calibration.md."""
    medians = [
        f"{found.errors(which)['all']['median_absolute_error']:.1%}" for which in found.log_ratios
    ]
    before, after = (medians * 2)[:2] if len(medians) == 1 else medians[:2]
    if found.parameters:
        words = ", ".join(f"`{p.key}` {p.before:.3g} → {p.after:.3g}" for p in moved(found))
        words = f"{len(moved(found))} of {len(found.parameters)}" + (f": {words}" if words else "")
    else:
        after, words = "", f"{len(found.uncertainty)} bands: {_bands(found)}"
    return f"| {family} | {fit} | {found.regimes.size:,} | {before} | {after} | {words} |"


def _bands(found: Calibration) -> str:
    in_use = found.subject.constants["uncertainty"]
    changed = [
        f"`{key}` {in_use[key].value:.3g} → {value:.3g}"
        for key, (value, _) in found.uncertainty.items()
        if abs(value - in_use[key].value) >= 0.005
    ]
    return ", ".join(changed) or "as they ship"


def write(family: str, fit: str, found: Calibration) -> None:
    """Put fitted values into the family's profile, and what the fit was into fits.toml."""
    constants = found.subject.constants
    wanted = {item.key for item in found.parameters if item.warning}
    path = FOLDER / f"{family}.toml"
    lines = path.read_text(encoding="utf-8").splitlines()
    for group, values in fitted_values(found).items():
        start = lines.index(f"[calibration.{group}]") + 1
        end = next((i for i in range(start, len(lines)) if lines[i].startswith("[")), len(lines))
        places = {lines[i].split(" = ")[0]: i for i in range(start, end)}
        for key, value in values.items():
            rows = 0 if found.parameters else found.uncertainty[key][1]
            reason = constants[group][key].reason if key in wanted else ""  # that of the former
            lines[places[key]] = constant_line(key, value, fit, rows, reason)
    entries = FOLDER / "fits.toml"
    text = entries.read_text(encoding="utf-8")
    former = tomllib.loads(text).get(fit, {})
    entry = fit_entry(found, SCRIPT) | {key: former[key] for key in ("data",) if key in former}
    block = "\n".join(entry_lines(fit, entry)) + "\n"
    text = re.sub(
        rf"^\[{re.escape(fit)}\]\n(?:[^\[\n].*\n?)*", lambda match: block, text, flags=re.M
    )
    for target, content in ((path, "\n".join(lines) + "\n"), (entries, text)):
        with atomic_path(target) as temporary:
            temporary.write_text(content, encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Fit, print, and write where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with measured/, primus/ and aicb/")
    parser.add_argument("--family", action="append", default=[], help="only these families")
    parser.add_argument("--fit", action="append", default=[], help="only these fits")
    parser.add_argument(
        "--sample", type=int, default=SAMPLE, help="rows that a fit sees of each set"
    )
    parser.add_argument("--write", action="store_true", help="put them into hwprofiles/*.toml")
    parser.add_argument("--json", action="store_true", help="print one JSON document a line")
    options = parser.parse_args(arguments)
    if not options.json:
        print("| family | fit | rows | median, as shipped | fitted again | would move |")
        print("|---|---|---:|---:|---:|---|")
    try:
        with tempfile.TemporaryDirectory() as folder:
            selected = (options.data, options.family, options.fit, options.sample, Path(folder))
            for family, fit, found in fits(*selected):
                if options.json:
                    print(json.dumps({"fit": fit, **found.to_json_dict()}), flush=True)
                else:
                    print(line(family, fit, found), flush=True)
                if options.write:
                    write(family, fit, found)
    except PerfModelError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
