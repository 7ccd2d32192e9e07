"""Rates of the whole program held against what they were: a guard against slow features.

    python benchmarks/speed/guard.py            # measure, print
    python benchmarks/speed/guard.py --check    # and fail where a rate fell by a quarter (CI)
    python benchmarks/speed/guard.py --record   # and write guard.csv, and a row of history.csv
    python benchmarks/speed/guard.py --commit REVISION…   # rows of history.csv for older states

A rate is said in pieces of work per *loop*, a fixed piece of arithmetic in Python and NumPy that
is timed before and after each measurement, so that a slower or busier machine slows both. CPU
time of one thread; the best of some measurements, as what else runs can only slow one down; what
falls short is measured again, in a process of its own, before it counts. Kernels are compiled or
loaded before. Verbs run in an empty home, bytecode at hand, as after an installation.

On another kind of machine memory, say, may be slower against the loop than it was where rates were
recorded. That shows in all kernels, or in all verbs: one is held against the median of its group
where that is below 1, unless it is below a half.

Rates lie in `guard.csv`, those of earlier states in `history.csv`; a state that lacks what a case
needs has none for it. Cases use public names, which older states have too.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
RATES, HISTORY = HERE / "guard.csv", HERE / "history.csv"
ROOT = HERE.parents[1]
REPEATS = 3
AGAIN = 5  # processes in which what falls short is measured once more, at most
SLOWER = 0.75  # of the recorded rate, from which on a case fails
SLOWEST = 0.5  # from which on the median of a group is no excuse
MEANT_BY_GROUP = 5  # cases whose median says something about the machine
LLAMA = "--model llama-3.1-8b --hardware dgx-h100"
RUN = f"{LLAMA} --devices 64 --tp 2 --pp 2 --global-batch 64 --seq-len 8192"
SERVED = f"{LLAMA} --isl 1024 --osl 128"
VERBS = {
    "help": "--help",
    "hardware": "hardware show dgx-h100",
    "model": "model show llama-3.1-8b",
    "kernel": "kernel gemm --hardware dgx-h100 --m 4096 --n 4096 --k 4096",
    "collective": "collective all_reduce --hardware dgx-h100 --size 64MiB --members 8",
    "project": f"project {RUN}",
    "explain": f"explain {RUN}",
    "launch": f"launch {RUN} --for megatron -o run.sh",
    "serve": f"serve {SERVED} --concurrency 16",
    "size": f"size {SERVED} --rate 20 --ttft-p95 2",
}
Case = Callable[[], tuple[int, Callable[[], object]]]


def loop() -> float:
    """Return the CPU seconds of the loop."""
    began = time.process_time()
    number, column = 1, np.linspace(0.0, 1.0, 1 << 15)
    for _ in range(150_000):
        number = (number * 1_103_515_245 + 12_345) & 0x7FFFFFFF
    for _ in range(300):
        column = np.sqrt(column * 1.0001 + 1e-3)
    return time.process_time() - began


def swept(keep: str, batches: int, **axes: Any) -> tuple[int, Callable[[], object]]:
    """Strategies of GPT-3 on 4,096 devices, enumerated, projected and labelled."""
    from perfmodel import strategy_grid, sweep

    asked = {
        "sequence_length": 2048,
        "global_batch_size": [1536 * (i + 1) for i in range(batches)],
        "tensor_parallel": [1, 2, 4, 8, 16, 32],
        "micro_batch_size": [1, 2, 4, 8],
        "recompute": ["none", "selective", "full"],
        "zero_stage": [0, 1, 2, 3],
        "context_parallel": [1],
    }
    asked |= axes

    def run() -> object:
        grid = strategy_grid("gpt3-175b", 4096, **asked)
        return sweep("gpt3-175b", grid, "dgx-h100", dtype=np.float32, threads=1, keep=keep)

    return len(strategy_grid("gpt3-175b", 4096, **asked)), run


def ranking() -> tuple[int, Callable[[], object]]:
    """Best of many strategies."""
    return swept("best", 200)


def all_variables() -> tuple[int, Callable[[], object]]:
    """Every variable of many strategies."""
    return swept("all", 24)


def scheduled() -> tuple[int, Callable[[], object]]:
    """Every variable of strategies whose pipelines run pass by pass."""
    axes = {"pipeline_schedule": ["zb_h1"], "virtual_pipeline": [1], "tensor_parallel": [8]}
    return swept("all", 12, **axes)


def served(method: str, **load: Any) -> tuple[int, Callable[[], object]]:
    """Operating points of Qwen3-32B, labelled."""
    from perfmodel import load_grid, serve, serving_grid

    axes = {"engine": ["vllm", "sglang", "trtllm"], "tensor_parallel": [2, 4, 8]}
    if method == "closed":
        axes |= {"token_budget": [2048, 8192], "max_sequences": [64, 128, 256, 512, 1024]}
        axes |= {"kv_precision": ["bf16", "fp8"]}
    grid = serving_grid("qwen3-32b", "dgx-h200", **axes)
    loads = load_grid(length_spread=0.8, rounds=10, **load)

    def run() -> object:
        return serve("qwen3-32b", grid, loads, "dgx-h200", method=method, threads=1)

    return len(grid) * len(loads), run


def serving_closed() -> tuple[int, Callable[[], object]]:
    """Operating points in closed form."""
    lengths = {"input_length": [256, 512, 1024, 2048, 4096, 8192], "output_length": [128, 1024]}
    return served("closed", concurrency=[2.0**n for n in range(11)], **lengths)


def serving_recursion() -> tuple[int, Callable[[], object]]:
    """Operating points pass by pass."""
    return served("recursion", concurrency=[1, 16, 64], input_length=1024, output_length=512)


def replay() -> tuple[int, Callable[[], object]]:
    """Requests of a trace."""
    sys.path.insert(0, str(HERE))
    from serving import replay_call

    found: tuple[int, Callable[[], object]] = replay_call()
    return found


def products() -> tuple[int, Callable[[], object]]:
    """Matrix products of all sizes."""
    from perfmodel import gemm_times

    random = np.random.default_rng(0)
    m, n, k = np.ceil(2.0 ** random.uniform(0, 15, (3, 300_000)))
    return m.size, lambda: gemm_times("dgx-h100", "bf16", m, n, k)


def attention() -> tuple[int, Callable[[], object]]:
    """Attention calls, forward and backward."""
    from perfmodel import attention_times

    random = np.random.default_rng(0)
    length = np.ceil(2.0 ** random.uniform(4, 16, 300_000)).astype(np.int64)
    one = 1, length, length, 32, random.choice([1, 8, 32], length.size), 128, 128
    backward = random.integers(0, 2, length.size).astype(bool)
    return length.size, lambda: attention_times("dgx-h100", "bf16", *one, True, 0, backward)


def collectives() -> tuple[int, Callable[[], object]]:
    """Collectives as the library chooses them."""
    from perfmodel import collective_times

    random = np.random.default_rng(11)
    kinds = random.choice(["all_reduce", "all_gather", "all_to_all"], 100_000)
    size, members = (
        2.0 ** random.uniform(8, 34, kinds.size),
        2 ** random.integers(1, 11, kinds.size),
    )
    return kinds.size, lambda: collective_times("dgx-h100", kinds, size, members)


def traces() -> Any:
    """Return the traces of a step on 32 ranks."""
    import perfmodel
    from perfmodel import projected_traces, projected_workload, strategies_from_rows

    row = {"tensor_parallel": 4, "pipeline_parallel": 4, "global_batch_size": 64}
    row |= {"micro_batch_size": 1, "sequence_length": 8192}
    model = perfmodel.load_model("llama-3.1-8b")
    grid = strategies_from_rows(model, 32, [row])
    return projected_traces(projected_workload(model, grid, "dgx-h100"))


def simulated() -> tuple[int, Callable[[], object]]:
    """Nodes of traces run on a network."""
    from perfmodel import HardwareCosts, simulate

    found = traces()
    costs = HardwareCosts("dgx-h100")
    nodes = sum(trace.nodes for trace in found.traces)
    return nodes, lambda: simulate(found, costs, symmetry=False)


def chakra_written() -> tuple[int, Callable[[], object]]:
    """Nodes of Chakra files written."""
    from perfmodel import write_traces

    found, folder = traces(), Path(tempfile.mkdtemp())
    nodes = sum(trace.nodes for trace in found.traces)
    return nodes, lambda: write_traces(found, folder / "written")


def chakra_read() -> tuple[int, Callable[[], object]]:
    """Nodes of Chakra files read."""
    from perfmodel import open_traces, write_traces

    found, folder = traces(), Path(tempfile.mkdtemp())
    write_traces(found, folder / "read")
    nodes = sum(trace.nodes for trace in found.traces)
    return nodes, lambda: open_traces(folder / "read")


def wafer() -> tuple[int, Callable[[], object]]:
    """Mappings of a model on a wafer, labelled."""
    from perfmodel import project_wafer, wafer_grid

    grid = wafer_grid(grid=range(200, 750), context=[512, 1024, 2048], batch=[1, 2, 4, 8])
    return len(grid), lambda: project_wafer("llama-3-8b", "wse-2", grid)


CASES: dict[str, tuple[str, Case]] = {
    "ranking": ("strategies", ranking),
    "all_variables": ("strategies", all_variables),
    "scheduled": ("strategies", scheduled),
    "serving_closed": ("operating points", serving_closed),
    "serving_recursion": ("operating points", serving_recursion),
    "replay": ("requests", replay),
    "products": ("products", products),
    "attention": ("calls", attention),
    "collectives": ("collectives", collectives),
    "simulate": ("nodes", simulated),
    "chakra_write": ("nodes", chakra_written),
    "chakra_read": ("nodes", chakra_read),
    "wafer": ("mappings", wafer),
}


def rate_of(case: Case) -> float:
    """Return pieces of work per loop, after a call that compiles or loads kernels."""
    count, call = case()
    call()
    found = []
    before = loop()
    for _ in range(REPEATS):
        began = time.process_time()
        call()
        seconds = time.process_time() - began
        after = loop()
        found.append(count * 0.5 * (before + after) / seconds)
        before = after
    return max(found)


def verb_rate(words: str, root: Path, bytecode: Path) -> float:
    """Return answers of a verb per loop, each in an empty home; the first leaves bytecode."""
    found = []
    unwanted = ("PYTHONDONTWRITEBYTECODE", "PERFMODEL_JIT", "NUMBA_CACHE_DIR")
    clean = {key: value for key, value in os.environ.items() if key not in unwanted}
    with tempfile.TemporaryDirectory() as name:
        for run in range(REPEATS):
            home = Path(name, str(run))
            home.mkdir()
            places = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
            places |= {"PYTHONPYCACHEPREFIX": str(bytecode), "PYTHONPATH": str(root)}
            before, used = loop(), resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "perfmodel", *words.split()]
            subprocess.run(command, cwd=home, env=clean | places, check=True, capture_output=True)
            now = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = now.ru_utime - used.ru_utime + now.ru_stime - used.ru_stime
            found.append(0.5 * (before + loop()) / seconds)
    return max(found)


def measure(names: list[str], root: Path) -> dict[str, float]:
    """Return the rates of cases and verbs; NaN where a state lacks what one needs."""
    os.environ["PERFMODEL_JIT"] = "always"
    found = {}
    with tempfile.TemporaryDirectory() as bytecode:
        for name in names:
            verb = name.removeprefix("verb ")
            try:
                if verb == name:
                    found[name] = rate_of(CASES[name][1])
                else:
                    found[name] = verb_rate(VERBS[verb], root, Path(bytecode))
            except Exception as error:  # what an older state lacks shows in many ways
                print(f"{name}: {str(error)[:200]}", file=sys.stderr)
                found[name] = float("nan")
    return found


def measured_apart(names: list[str], root: Path, runs: int = 1) -> dict[str, float]:
    """Return the best rates of some processes of their own, with the program below `root`."""
    best: dict[str, float] = {}
    for _ in range(runs):
        command = [sys.executable, __file__, "--json", "--root", str(root), *names]
        environment = os.environ | {"PYTHONPATH": str(root)}
        done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE)
        for name, rate in json.loads(done.stdout).items():
            best[name] = max(rate, best.get(name, rate))
    return best


def recorded() -> dict[str, float]:
    """Return the committed rates."""
    with RATES.open(newline="") as rows:
        return {row["case"]: float(row["per_loop"]) for row in csv.DictReader(rows)}


def write_rates(found: dict[str, float]) -> None:
    """Write the rates that later states are held against."""
    with RATES.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["case", "per_loop", "unit"])
        for name, rate in found.items():
            rows.writerow([name, f"{rate:.4g}", CASES.get(name, ("answers",))[0]])


def add_history(revision: str, root: Path, found: dict[str, float]) -> None:
    """Add a row for a commit to the history, in place of one that it has."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    commit, date = git("log", "-1", "--format=%h %cs", revision).split()
    new = {"commit": commit, "date": date} | {k: f"{v:.4g}" for k, v in found.items()}
    rows = []
    if HISTORY.exists():
        with HISTORY.open(newline="") as file:
            rows = list(csv.DictReader(file))
    rows = [row for row in rows if row["commit"] != commit] + [new]
    rows.sort(key=lambda row: int(git("log", "-1", "--format=%ct", row["commit"])))
    with HISTORY.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["commit", "date", *names_of()], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: row.get(name, "") for name in writer.fieldnames} for row in rows)


def names_of() -> list[str]:
    """Return the names of all cases and verbs."""
    return [*CASES, *(f"verb {name}" for name in VERBS)]


def older(revision: str) -> None:
    """Measure an older state out of a worktree of it, for the history."""
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name, "tree")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(tree), revision], check=True)
        try:
            add_history(revision, ROOT, measured_apart(names_of(), tree))
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def slow_ones(found: dict[str, float]) -> list[str]:
    """Return what is slower than it may be against its recorded rate and its group."""
    before, slow = recorded(), []
    for verbs in (False, True):
        names = [name for name in found if name.startswith("verb ") is verbs]
        shares = np.array([found[name] / before[name] for name in names])
        usual = min(float(np.nanmedian(shares)), 1.0) if len(names) >= MEANT_BY_GROUP else 1.0
        least = SLOWER * usual if usual >= SLOWEST else SLOWER
        slow += [names[i] for i in np.flatnonzero(~(shares >= least))]
    return slow


def check(found: dict[str, float]) -> list[str]:
    """Return what is slower than it may be, measured some more times before it counts."""
    for _ in range(AGAIN):
        if not (suspects := slow_ones(found)):
            return []
        again = measured_apart(suspects, ROOT, runs=1)
        found |= {name: np.fmax(rate, found[name]) for name, rate in again.items()}
    return slow_ones(found)


def main() -> int:
    """Measure; print, check or record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", help="which; all unless given")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--check", action="store_true", help="fail where a rate fell by a quarter")
    parser.add_argument("--record", action="store_true", help="write guard.csv and history.csv")
    parser.add_argument("--commit", nargs="+", help="measure older states for history.csv")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder of the program")
    asked = parser.parse_args()
    if asked.commit:
        for revision in asked.commit:
            older(revision)
        return 0
    names = asked.cases or names_of()
    found = measured_apart(names, ROOT, 3) if asked.record else measure(names, asked.root)
    slow = check(found) if asked.check else []
    if asked.record:
        write_rates(found)
        add_history("HEAD", ROOT, found)
    if asked.json:
        print(json.dumps(found))
        return 0
    before = recorded() if RATES.exists() else {}
    for name, rate in found.items():
        share = f"{rate / before[name]:8.2f}" if name in before else ""
        print(f"{name:20}{rate:12.4g} {CASES.get(name, ('answers',))[0]} per loop{share}")
    for name in slow:
        print(f"{name}: {found[name]:.4g} per loop, where {before[name]:.4g} were recorded")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
