"""Predict a device that was never calibrated, or software that nobody described.

    python benchmarks/accuracy/left_out.py DATA [--device NAME …] [--rows NAME …] [--write] [--json]
    python benchmarks/accuracy/left_out.py DATA [--software] [--hardware] [--json]

Whole steps with ``--software`` or ``--hardware``, or both: see `steps_left_out`. Else kernels:

DATA is the folder with ``measured/``. Each measured device is left out in turn: what was fitted to
it comes from its relatives by the rules of `perfmodel.hwprofiles.trust`, from its instruction
class where another one of it is measured, else from the classes beside it. What its libraries do
stays, as that is public. Nothing is fitted. ``--write`` puts the spread of what was left out,
by kernel class and by whether a class mate was there, into ``hwprofiles/trust.toml``.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.errors import PerfModelError
from perfmodel.base.files import atomic_path
from perfmodel.hwprofiles import Hardware
from perfmodel.hwprofiles.constants import known
from perfmodel.hwprofiles.family import Family, load_family
from perfmodel.hwprofiles.loader import relatives
from perfmodel.hwprofiles.trust import FILE, HANDED, Handed, handed, measured_value, quoted
from perfmodel.measured.calibrate import Calibration, judge_family
from perfmodel.measured.kinds import training
from perfmodel.measured.problem import MeasuredTable, calibrated_kind
from perfmodel.measured.row_software import month_of, software_of, unknown_software
from perfmodel.measured.rows import MeasuredRow
from perfmodel.software.framework import FRAMEWORKS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from accuracy.families import compared, scores

DEVICES = {
    "A100_SXM": ("nvidia-ampere", "measured"),
    "L40S": ("nvidia-ada", "measured/more"),
    "H100_SXM": ("nvidia-hopper", "measured"),
    "B200": ("nvidia-blackwell", "measured"),
    "MI300X|MI325X": ("amd-cdna3", "measured"),
    "MI350X|MI355X": ("amd-cdna4", "measured/more"),
}
"""Device as tables name it -> family, folder."""
LIBRARY = "framework == 'sglang' and kernel != 'triton'"
"""The attention library that SGLang has for the device's generation."""
LATENT = f"({LIBRARY} or framework == 'trtllm' and hardware in ('A100_SXM', 'L40S'))"
"""The same of latent attention, for which SGLang has none on mma.sync."""
ROWS = {
    "products, 16 bits": ("gemm", "gemm.csv", "dtype == 'bf16'"),
    "products, quantised": ("gemm", "gemm.csv", "dtype not in ('bf16', 'fp16')"),
    "prefill": ("attention", "attention.csv", f"{LIBRARY} and phase == 'fwd'"),
    "decode": ("attention", "attention.csv", f"{LIBRARY} and phase == 'decode'"),
    "latent prefill": ("mla", "mla.csv", f"{LATENT} and phase == 'fwd'"),
    "latent decode": ("mla", "mla.csv", f"{LATENT} and phase == 'decode'"),
    "layers with experts": ("moe", "moe.csv", "framework in ('sglang', 'aiter')"),
    "streams": ("stream", "elementwise.csv", "framework in ('sglang', 'vllm')"),
}
ELSEWHERE = {"MI350X|MI355X": ("MI355X", "primus/measured_rccl_mi355x.csv", "")}
"""Device -> the one whose collectives were measured, their table and rows."""
CLASSES = {"products, 16 bits": "gemm", "prefill": "attention", "decode": "decode",
           "latent prefill": "attention", "latent decode": "decode",
           "layers with experts": "moe", "streams": "stream",
           "collectives": "collective"}  # fmt: skip
"""Rows -> the kernel class whose band they make; training multiplies 16 bits most."""
FEWEST = 30
COLUMNS = ("median", "mean", "p90", "worst")
HEADER = (
    "| left out | rows | | trust | own constants | left out: median | mean | bias |",
    "|---|---|---:|---|---:|---:|---:|---:|",
)


@dataclass(frozen=True)
class LeftOut:
    """Errors of one device's rows.

    Attributes
    ----------
    device, rows : str
    own, borrowed : Calibration
        With its own constants, and with those of relatives.
    trust : str
        What the constants would be called.
    """

    device: str
    rows: str
    own: Calibration
    borrowed: Calibration
    trust: str

    def errors(self, which: str) -> dict[str, Any]:
        """Return the statistics of ``own`` or ``borrowed`` constants."""
        found: Calibration = getattr(self, which)
        return found.errors("before")["all"]


def borrowed(family: Family) -> tuple[Family, dict[str, str]]:
    """Return a family with what relatives say in place of what was fitted, and its trust."""
    own = next(relative for relative in relatives() if relative.name == family.name)
    others = [relative for relative in relatives() if relative.name != family.name]
    trust: dict[str, str] = {}
    groups = (calibrated_kind(kind).calibration for kind, *_ in ROWS.values())
    for group in ("network", *dict.fromkeys(groups)):
        found: dict[str, Handed] = {}
        for key in family.calibration[group]:
            measured = not math.isnan(measured_value(own.calibration[group].get(key)))
            if measured and known(group)[key].transfer in HANDED:
                found[key] = handed(
                    group, key, own.instruction_class, own.clock, others, own.unit_bandwidth
                )
                stated = own.calibration[group][key]
                if group == "network" and isinstance(stated, dict) and "prior" in stated:
                    # What the shape of the links says before any fit, of a mesh or a switch.
                    found[key] = Handed(float(stated["prior"]), "prior", "prior of the family")
        entries = dict(family.calibration[group])
        for key, item in found.items():
            entries[key] = replace(
                entries[key], value=item.value, trust=item.trust, source=item.source
            )
        family = replace(family, calibration={**family.calibration, group: entries})
        levels = [item.trust for item in found.values()]
        trust[group] = max(set(levels), key=levels.count) if levels else "prior"
    return family, trust


def tables(data: Path) -> Iterator[tuple[str, str, str, str, MeasuredTable]]:
    """Yield device, family, rows, the constants that they judge, and the table of the rows."""
    for device, (family, folder) in DEVICES.items():
        for rows, (kind, file, where) in ROWS.items():
            selection = f"hardware == '{device}' and ({where})"
            table = MeasuredTable(str(data / folder / file), kind, selection)
            yield device, family, rows, calibrated_kind(kind).calibration, table
        own = (device, f"{folder}/collective.csv", f"hardware == '{device}' and impl == 'nccl'")
        name, file, where = ELSEWHERE.get(device, own)
        table = MeasuredTable(str(data / file), "collective", where)
        yield name, family, "collectives", "network", table


def left_out(
    data: Path, devices: Sequence[str] = (), chosen: Sequence[str] = ()
) -> Iterator[LeftOut]:
    """Yield every device and kind of rows of which there are enough, or those that are chosen."""
    for device, name, rows, group, table in tables(data):
        if (devices and device not in devices) or (chosen and rows not in chosen):
            continue
        family = load_family(name)
        try:
            own = judge_family(family, [table])
        except PerfModelError:
            continue  # no such rows
        if own.regimes.size >= FEWEST:
            without, trust = borrowed(family)
            yield LeftOut(device, rows, own, judge_family(without, [table]), trust[group])


def bands(found: list[LeftOut]) -> dict[str, dict[str, float]]:
    """Return half the 10-90 % bands of what was left out, by trust and kernel class.

    Devices count alike: the mean over them.
    """
    widths: dict[str, dict[str, list[float]]] = {}
    for item in found:
        if item.rows in CLASSES:
            ratios = item.borrowed.log_ratios["before"]
            low, high = np.quantile(ratios, [0.1, 0.9])
            level = widths.setdefault(item.trust, {})
            level.setdefault(CLASSES[item.rows], []).append(float(high - low) / 2.0)
    return {
        level: {name: round(float(np.mean(values)), 3) for name, values in classes.items()}
        for level, classes in widths.items()
    }


UNKNOWN = {
    "plain": "somebody's own, FSDP2",
    "plain-jax": "somebody's own, JAX",
    "plain-megatron": "somebody's own, Transformer Engine",
    "plain-parallel": "somebody's own, tensor parallel",
    "neuron": "somebody's own",
}
"""Kind of plain stack -> a cell ``framework`` that means it."""
PARTS = {
    "in sample": (),
    "software left out": ("software",),
    "machine left out": ("hardware",),
    "both left out": ("software", "hardware"),
}
SHOWN = ("families alike", "all", "dense", "experts", "> 512 devices")
STEPS_HEADER = (
    "| whole steps | runs | scored | median | mean | p90 | worst | bias |",
    "|---|---:|---:|---:|---:|---:|---:|---:|",
)


def without_software(row: MeasuredRow) -> MeasuredRow:
    """Return a row as if its software had no page: a name of its kind, and its month.

    What the cell says in parentheses of a run stays: ``(HybridEP)``, ``(DualPipe)``.
    """
    preset, _ = software_of(row)
    month = month_of(row) or FRAMEWORKS[preset].released
    kind, _ = unknown_software(row, month)
    said = " ".join(re.findall(r"\((?:[^()]*(?:EP|a2a|Pipe)[^()]*)\)", row.text("framework")))
    name = f"{UNKNOWN[FRAMEWORKS[kind].software]} {said}".strip()
    changed = row.replaced("framework", name)
    dated = row.lower("version").startswith("mlperf") or re.fullmatch(
        r"20[\d-]+", month_of(changed)
    )
    return changed if dated else changed.replaced("version", month)


@lru_cache(maxsize=256)
def without_calibration(hardware: Hardware) -> Hardware:
    """Return hardware as if nothing of its family had been measured; as it is where nothing was.

    Its constants change by as much as those of the chip do that the family was measured on.
    """
    system = hardware.name.partition("[")[0]
    for relative in relatives():
        family = load_family(relative.name)
        if system in family.systems:
            less, _ = borrowed(family)
            for group, entries in less.calibration.items():
                changed = dict(hardware.calibration[group])
                for key, entry in entries.items():
                    own, now = family.calibration[group][key], changed[key]
                    if entry.source != own.source and (group, key) not in family.own[system]:
                        value = now.value * entry.value / own.value if own.value else entry.value
                        changed[key] = replace(
                            now, value=value, trust=entry.trust, source=entry.source
                        )
                calibration = {**hardware.calibration, group: changed}
                hardware = replace(hardware, calibration=calibration)
            return hardware
    return hardware


def steps_kind(parts: Sequence[str]) -> training.TrainingKind:
    """Return the kind of training runs that knows neither of some parts."""

    def case_of(row: MeasuredRow) -> training.Case:
        case = training.case_of(without_software(row) if "software" in parts else row)
        if "hardware" not in parts:
            return case
        return replace(case, hardware=without_calibration(case.hardware))

    return replace(training.KIND, case_of=case_of)


def steps_left_out(folder: Path, parts: Sequence[str] = ("software", "hardware")) -> dict[str, Any]:
    """Score the development runs of `families`, as they are and with less known of them.

    *Software left out*: a run is projected as if its software's page did not exist, as
    `perfmodel compare` takes software that nobody described: the plain stack of its kind and year.
    *Machine left out*: as if no kernel of its device's family had been measured; constants come
    from relatives (above). Devices that were never calibrated (TPUs, Trainium) stay as they are.

    Returns
    -------
    dict
        Title of `PARTS` -> ``scores`` of `families`.
    """
    found = {}
    for title, left in PARTS.items():
        if set(left) <= set(parts):
            found[title] = scores(compared(folder, kind=steps_kind(left)))
    return found


def steps_markdown(found: Mapping[str, Any]) -> str:
    """Write the statistics of `SHOWN` sets as a Markdown table, what was left out side by side."""
    lines = [*STEPS_HEADER]
    for name in SHOWN:
        for title, of_all in found.items():
            it = of_all["average"] if name == SHOWN[0] else of_all["sets"][name]
            counts = f"{it['rows']:,} | {it['count']:,}" if "rows" in it else " | "
            numbers = [f"{100 * it[column]:.1f} %" for column in COLUMNS]
            bias = f"{100 * it['bias']:+.1f} %"
            lines.append(f"| {name}: {title} | {counts} | {' | '.join([*numbers, bias])} |")
    return "\n".join(lines)


def families_markdown(found: Mapping[str, Any]) -> str:
    """Write the median of each family, what was left out side by side."""
    lines = [f"| family | {' | '.join(found)} |", "|---|" + "---:|" * len(found)]
    first = next(iter(found.values()))
    for family, it in first["families"].items():
        if it["count"]:
            cells = [it["families"][family] for it in found.values()]
            texts = [f"{100 * cell['median']:.1f} ({100 * cell['bias']:+.1f})" for cell in cells]
            lines.append(f"| {family} | {' | '.join(texts)} |")
    return "\n".join(lines)


def table_line(item: LeftOut) -> str:
    """Return a device's errors as a row of the table."""
    own, out = item.errors("own"), item.errors("borrowed")
    return (
        f"| {item.device.replace('|', ', ')} | {item.rows} | {out['count']:,} "
        f"| {item.trust} | {own['median_absolute_error']:.1%} "
        f"| {out['median_absolute_error']:.1%} | {out['mean_absolute_error']:.1%} "
        f"| {out['bias']:+.1%} |"
    )


def print_steps(folder: Path, parts: Sequence[str], as_json: bool) -> int:
    """Print what is known of whole steps with less known of them."""
    try:
        found = steps_left_out(folder, parts)
    except PerfModelError as error:
        print(f"left_out.py: {error}", file=sys.stderr)
        return 2
    text = f"{steps_markdown(found)}\n\n{families_markdown(found)}"
    print(json.dumps(found, indent=1) if as_json else text)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Print the errors of each device left out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with measured/")
    names = (*DEVICES, *(name for name, *_ in ELSEWHERE.values()))
    parser.add_argument("--device", nargs="+", default=(), choices=names, help="these alone")
    kinds = (*ROWS, "collectives")
    parser.add_argument("--rows", nargs="+", default=(), choices=kinds, help="these alone")
    parser.add_argument("--write", action="store_true", help="put the bands into trust.toml")
    parser.add_argument("--software", action="store_true", help="whole steps without its page")
    parser.add_argument("--hardware", action="store_true", help="whole steps, never calibrated")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    parts = [name for name in ("software", "hardware") if getattr(options, name)]
    if parts:
        return print_steps(options.data / "e2e", parts, options.json)
    if options.write and (options.device or options.rows):
        print("left_out.py: --write takes all devices and rows", file=sys.stderr)
        return 2
    found = []
    if not options.json:
        print(*HEADER, sep="\n")
    try:
        for item in left_out(options.data, options.device, options.rows):
            found.append(item)
            if not options.json:
                print(table_line(item), flush=True)
    except PerfModelError as error:
        print(f"left_out.py: {error}", file=sys.stderr)
        return 2
    if options.json:
        rows = [
            {"device": item.device, "rows": item.rows, "trust": item.trust,
             "own": item.errors("own"), "left_out": item.errors("borrowed")}
            for item in found
        ]  # fmt: skip
        print(json.dumps({"devices": rows, "bands": bands(found)}, indent=1))
    if options.write:
        with atomic_path(FILE) as temporary:
            temporary.write_text(quoted(bands(found)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
