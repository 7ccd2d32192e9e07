"""Set every number of profiles to half and twice its value: each acts, or it is said why not.

::

    python benchmarks/settable.py                       # ten profiles, five requests: hours
    python benchmarks/settable.py --every 25 --seed 3   # every 25th number
    python benchmarks/settable.py --hardware mi300x-server --request train --path device.

Each number goes through the command line as a user would set it. What comes out is one of

* ``changed``: some number of the answer differs;
* ``bound``: the answer is the same, and a note says which other numbers bind;
* ``refused``: an error in one line says that the number cannot change any result of the request,
  and which one would; or that the profile cannot have the value (a level without members).

Anything else is a finding: a number that does nothing in silence, and a refused one that does
something where the check is left out. Exit status 1 where there is one.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from click.testing import CliRunner

from perfmodel.analysis import acting
from perfmodel.cli.main import cli
from perfmodel.hwprofiles import known_paths, load_hardware

PROFILES = (
    *("dgx-a100", "dgx-h100", "dgx-b200", "gb200-nvl72", "mi300x-server", "mi355x-server"),
    *("tpu-v5p-pod", "trn2-48xl", "l40s-server", "h100-pcie"),
)
TRAIN = "--devices 32 --seq-len 4096 --global-batch 64 --recompute full"
REQUESTS = {
    "train": f"project --model llama-3.1-8b {TRAIN} --tp 2 --pp 2 --micro-batch 2 --tokens 1e12",
    "experts": f"project --model qwen3-30b-a3b {TRAIN} --ep 8 --zero 1",
    "serve": "serve --model llama-3.1-8b --tp 2 --input-length 2048 --output-length 256 "
    "--concurrency 16",
    "product": "kernel gemm --m 8192 --n 8192 --k 8192",
    "collective": "collective all_reduce --members 16 --size 64MiB",
}
FACTORS = (0.5, 2.0)
LIMITS = ("must be", "stated together", "does not close", "only the outermost", "needs", "lies out")
"""How a profile refuses a value that it cannot have."""
TEXTS = ("hardware", "name", "output", "constants_trust")
"""What of an answer says which profile it is of, and is no result."""


class Found(NamedTuple):
    """What one number did: its path and value, ``changed``, … or ``finding``, and what was said."""

    path: str
    value: float
    verdict: str
    said: str


def answer(words: str, checked: bool = True) -> tuple[int, Any, str]:
    """Run a command; return its exit status, its numbers, and what it said on stderr.

    Unless `checked`, numbers that cannot act are not looked for.
    """
    if not checked:
        check, acting.idle_numbers = acting.idle_numbers, lambda *given: []
        try:
            return answer(words)
        finally:
            acting.idle_numbers = check
    result = CliRunner().invoke(cli, [*shlex.split(words), "--json"], prog_name="perfmodel")
    document = json.loads(result.stdout) if result.stdout else None
    return result.exit_code, _numbers(document), result.stderr


def _numbers(document: Any) -> Any:
    """Return a document without what is no result, and names without what was set."""
    if isinstance(document, dict):
        return {
            key.partition("[")[0]: _numbers(it) for key, it in document.items() if key not in TEXTS
        }
    if isinstance(document, list):
        return [_numbers(it) for it in document]
    return document


def settable(profile: str, part: str = "") -> Iterator[tuple[str, float]]:
    """Yield path and value of every number of a profile above 0."""
    hardware = load_hardware(profile)
    for path, field in known_paths(hardware).items():
        value = hardware.value(path)
        if field.kind in ("number", "count") and path.startswith(part) and float(value) > 0.0:
            yield path, float(value)


def tried(request: str, base: Any, path: str, value: float) -> Found:
    """Set one number, and say what it did to an answer."""
    status, numbers, said = answer(f"{request} --set {path}={value!r}")
    said = "\n".join(line for line in said.splitlines() if not line.startswith("compiling"))
    if status == 2:
        line = said.count("\n") == 0
        if line and "cannot change any result" in said:
            return Found(path, value, _refused(request, base, path, value), said)
        return Found(path, value, "limit" if line and _is_limit(said) else "finding", said)
    if numbers != base:
        return Found(path, value, "changed", said)
    bound = f"the value of {path} changes no result" in said
    return Found(path, value, "bound" if bound else "finding", said)


def _is_limit(said: str) -> bool:
    return any(text in said for text in LIMITS)


def _refused(request: str, base: Any, path: str, value: float) -> str:
    """Say whether a refused number really does nothing, where the check is left out."""
    _, numbers, _ = answer(f"{request} --set {path}={value!r}", checked=False)
    return "refused" if numbers == base else "finding"


def drive(
    profile: str, request: str, part: str = "", every: int = 1, seed: int = 0
) -> Iterator[Found]:
    """Yield what every number of a profile, or each so-manieth, does to a request."""
    words = f"{REQUESTS[request]} --hardware {profile}"
    status, base, said = answer(words)
    if status not in (0, 3):
        raise SystemExit(f"{words}: {said}")
    numbers = [*settable(profile, part)]
    for path, value in random.Random(seed).sample(numbers, -(-len(numbers) // every)):
        for factor in FACTORS:
            yield tried(words, base, path, _times(profile, path, value, factor))


def _times(profile: str, path: str, value: float, factor: float) -> float:
    """Return so many times a number; of whole ones another whole one."""
    whole = known_paths(load_hardware(profile))[path].kind == "count"
    near = value - 1 if factor < 1.0 else value + 1
    return float((round(value * factor) or near or 2) if whole else value * factor)


def main() -> int:
    """Drive profiles and requests, and print how often each verdict came and all findings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hardware", nargs="*", default=PROFILES)
    parser.add_argument("--request", nargs="*", default=[*REQUESTS], choices=[*REQUESTS])
    parser.add_argument("--path", default="", help="beginning of the paths that are tried")
    parser.add_argument("--every", type=int, default=1, help="try one of so many numbers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="print every number")
    options = parser.parse_args()
    findings = 0
    print("| profile | request | changed | bound | refused | limit | findings |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for profile in options.hardware:
        for request in options.request:
            found = [*drive(profile, request, options.path, options.every, options.seed)]
            counts = Counter(it.verdict for it in found)
            verdicts = ("changed", "bound", "refused", "limit", "finding")
            print(f"| {profile} | {request} |", *(f"{counts[it]:,} |" for it in verdicts))
            for it in found:
                if options.verbose or it.verdict == "finding":
                    print(f"  {it.verdict}: {it.path}={it.value:g} {it.said}")
            findings += counts["finding"]
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
