"""Ask the same thing in many ways; all have to answer the same.

::

    python benchmarks/one_answer.py verbs --cases 2000 --seed 1
    python benchmarks/one_answer.py files --cases 2000 --seed 1
    python benchmarks/one_answer.py files --all [--sample 3000 --seed 1]

``verbs``: random partial requests, of all models, machines and software, each asked of `project`,
`explain`, `timeline`, `launch`, `diff`, `sensitivity`, `sweep`, and of Python: the same strategy
and the same step time. A sweep is asked with the values that a projection has of what it would try
several of (`SWEPT`).

``files``: what `launch` writes, read by `project --from`: the same strategy, software, release and
step time to the last digit, or a remark that says what the file does not hold. ``--all`` sets every
choice of the table of every program to each of its values, one after the other.

A finding is printed with the commands that show it; the exit status is 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from perfmodel import project
from perfmodel.base.fields import facts_of
from perfmodel.base.strategy_fields import FIELD_BY_NAME, FIELDS
from perfmodel.cli.main import cli
from perfmodel.hwprofiles import list_hardware
from perfmodel.launch import MODULES
from perfmodel.launch.describe import settled
from perfmodel.launch.software import software_of
from perfmodel.launch.table import load_program
from perfmodel.model.presets import list_models, load_model
from perfmodel.software.framework import FRAMEWORKS, Framework

DEGREES = (1, 1, 1, 2, 4, 8)
VALUES: dict[str, Sequence[Any]] = {
    "tp": DEGREES,
    "cp": (1, 1, 2, 4),
    "pp": DEGREES,
    "vpp": (1, 1, 2),
    "ep": (1, 2, 8),
    "etp": (1, 2),
    "micro-batch": (1, 1, 2, 4),
    "zero": (0, 1, 2, 3),
    "recompute": ("none", "selective", "full"),
    "precision": ("bf16", "bf16", "fp8", "mxfp8", "fp16"),
    "cp-kind": ("ring", "all_to_all", "all_gather"),
    "sp": ("true", "false"),
}
KEPT = 0.35
"""Share of the options that a request names."""
SWEPT = ("tp", "cp", "pp", "vpp", "ep", "micro-batch", "zero", "recompute")
"""Options of which a sweep tries all sensible values; `precision` and the rest have one."""
SIZES = (8, 16, 32, 64, 256)
Words = list[str]


def run(*arguments: Any) -> Result:
    """Run ``perfmodel`` with arguments."""
    return CliRunner().invoke(cli, [*map(str, arguments)], prog_name="perfmodel")


def answer(*arguments: Any) -> dict[str, Any] | None:
    """Return what a command prints as JSON; None where it refuses."""
    result = run(*arguments, "--json")
    if result.exit_code not in (0, 3):
        if result.exit_code != 2:
            raise RuntimeError(f"{arguments}: {result.output}") from result.exception
        return None
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def options(pairs: dict[str, Any]) -> Words:
    """Return pairs as words of a command line."""
    return [word for name, value in pairs.items() for word in (f"--{name}", str(value))]


def requests(seed: int) -> Iterator[dict[str, Any]]:
    """Yield random partial requests; many are impossible."""
    draw = random.Random(seed)
    models = [item.name for item in list_models()]
    machines = list_hardware()
    while True:
        named = {
            "model": draw.choice(models),
            "hardware": draw.choice(machines),
            "framework": draw.choice(list(FRAMEWORKS)),
            "devices": draw.choice(SIZES),
            "seq-len": draw.choice((1024, 4096, 8192)),
            "global-batch": draw.choice((16, 64, 256)),
        }
        yield named | {
            name: draw.choice(values) for name, values in VALUES.items() if draw.random() < KEPT
        }


def unlike(verb: str, mine: dict[str, Any], its: dict[str, Any] | None) -> list[str]:
    """Return in what an answer differs from that of `project`."""
    if its is None:
        return [f"{verb} refuses"]
    names = [*(spec.name for spec in FIELDS), "step_time"]
    return [
        f"{verb}: {name} {its[name]}, of project {mine[name]}"
        for name in names
        if name in its and its[name] != mine[name]
    ]


def plain(found: dict[str, Any], model: str) -> dict[str, Any]:
    """Return a strategy with one value for each thing that does not matter to it."""
    row = {spec.name: found[spec.name] for spec in FIELDS}
    return settled(row, load_model(model))


def verbs(request: dict[str, Any], folder: Path) -> list[str] | None:
    """Return in what the verbs differ about a request; None where it is impossible."""
    words, model = options(request), str(request["model"])
    mine = answer("project", *words)
    if mine is None:
        return None
    found = unlike("explain", mine, answer("explain", *words))
    found += unlike("timeline", mine, answer("timeline", *words))
    sensitive = answer("sensitivity", *words, "--parameter", "device.memory.bandwidth")
    base = None if sensitive is None else {"step_time": sensitive["base"]}
    found += unlike("sensitivity", mine, base)
    (folder / "run.json").write_text(json.dumps(mine), encoding="utf-8")
    both = answer("diff", "-", str(folder / "run.json"), *words)
    found += unlike("diff", mine, both and both["a"]) + unlike("diff", mine, both and both["b"])
    launched = answer("launch", *words, "--for", software_of(str(request["framework"])))
    if launched is not None:  # software cannot do every strategy
        its = plain(launched["strategy"], model)
        found += unlike("launch", {**mine, **plain(mine, model)}, its)
    stated = {
        FIELD_BY_OPTION[name]: read(name, request[name]) for name in VALUES if name in request
    }
    python = project(
        model,
        request["hardware"],
        request["devices"],
        sequence_length=request["seq-len"],
        global_batch_size=request["global-batch"],
        framework=request["framework"],
        **stated,
    )
    found += unlike("Python", mine, dict(python))
    asked = {name: str(mine[FIELD_BY_OPTION[name]]).lower() for name in SWEPT}
    file = folder / "sweep.json"
    file.unlink(missing_ok=True)
    run("sweep", *options(request | asked), "--float64", "-o", str(file))
    swept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    rows = swept.get("rows") or [None]
    return found + unlike("sweep", mine, rows[0])


def read(name: str, value: Any) -> Any:
    """Return the value of an option as Python takes it."""
    return value == "true" if name == "sp" else value


def choices_of(program: str) -> Iterator[dict[str, Any]]:
    """Yield every value of every choice of a program's table, and of every fact beside them."""
    table = load_program(MODULES[program])
    for choice in table.choices:
        spec = FIELD_BY_NAME[choice.field]
        for value in choice.values:
            yield {spec.option: str(value).lower()}
    facts = facts_of(Framework)
    named = {choice.field: choice.values for choice in table.software}
    for name, about in facts.items():
        values = named.get(name) or about.choices
        if isinstance(getattr(FRAMEWORKS[table.preset], name), bool):
            values = (True, False)
        for value in values or ():
            if value != "":
                yield {"set": f"software.{name}={str(value).lower()}"}
    for name in ("tp", "cp", "pp", "vpp", "ep", "etp", "micro-batch", "zero"):
        yield from ({name: value} for value in VALUES[name])


BASES = (
    {"model": "llama-3.1-8b", "hardware": "dgx-h100", "tp": 2, "cp": 2, "pp": 2},
    {"model": "qwen3-30b-a3b", "hardware": "gb200-nvl72", "ep": 4, "tp": 2, "etp": 1, "pp": 2},
    {"model": "qwen2.5-7b", "hardware": "dgx-b200", "cp": 2, "zero": 3, "recompute": "full"},
    {"model": "mixtral-8x7b", "hardware": "dgx-b200", "ep": 8, "pp": 4, "vpp": 2},
)


def every_file() -> Iterator[dict[str, Any]]:
    """Yield requests of all programs, their software and all values of their choices."""
    for program in MODULES:
        own = [name for name in FRAMEWORKS if software_of(name) == program]
        for framework in own:
            for base in BASES:
                for more in choices_of(program):
                    yield LENGTHS | base | {"framework": framework, "for": program} | more


LENGTHS = {"devices": 32, "seq-len": 4096, "global-batch": 128}


def files(request: dict[str, Any], folder: Path) -> list[str] | None:
    """Return in what a file differs from what it was written of; None where none is written."""
    program = request.get("for") or software_of(str(request["framework"]))
    model = str(request["model"])
    words = options({name: value for name, value in request.items() if name != "for"})
    mine = answer("project", *words)
    file = str(folder / "launch")
    written = mine and run("launch", *words, "--for", program, "-o", file)
    if not mine or not written or written.exit_code:
        return None
    notes = " ".join(written.stderr.split())
    beside = [] if "does not say the devices" not in notes else ["--devices", request["devices"]]
    beside += [] if "does not say the model" not in notes else ["--model", model]
    its = answer("project", "--from", file, "--hardware", request["hardware"], *beside)
    if its is None or "the file says no " in notes or "the file does not say software." in notes:
        return [] if its is not None else [f"unreadable: {notes}"]
    mine |= plain(mine, model) | {"release": mine["framework"].partition("[")[0]}
    its |= plain(its, model) | {"release": its["framework"].partition("[")[0]}
    if "overlaps and fuses otherwise" in notes:
        return unlike("file", plain(mine, model), plain(its, model))
    release = [] if mine["release"] == its["release"] else [f"{its['release']}"]
    return release + unlike("file", mine, its)


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, print what differs, and return whether anything does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("verbs", "files"))
    parser.add_argument("--cases", type=int, default=2000, help="possible requests")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="files: every value of every choice")
    parser.add_argument("--sample", type=int, help="so many of those, drawn at random")
    asked = parser.parse_args(arguments)
    ask = verbs if asked.what == "verbs" else files
    drawn = requests(asked.seed)
    if asked.all:
        every = list(every_file())
        count = min(asked.sample or len(every), len(every))
        drawn = iter(random.Random(asked.seed).sample(every, count))
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for request in drawn:
            found = ask(request, Path(folder))
            counts["impossible" if found is None else "wrong" if found else "alike"] += 1
            if found:
                print(f"{' '.join(options(request))}\n    " + "\n    ".join(found), flush=True)
            if not asked.all and counts["alike"] + counts["wrong"] >= asked.cases:
                break
    print(dict(counts))
    return int(counts["wrong"] > 0)


FIELD_BY_OPTION = {spec.option: spec.name for spec in FIELDS}

if __name__ == "__main__":
    sys.exit(main())
