"""Others side by side with this model: the same work by both, in turn, in one run.

Each of the others gets an environment of its own, with what the package index has of it:

training   llm-analysis: the step time and memory of GPT-3 175B on 1,024 H100, strategy by strategy,
           for as long as `--seconds` says; then the same strategies here, and a full grid, which
           only we are asked. Calculon the same; the index has another program of that name, so it
           needs `--calculon` with a checkout of https://github.com/calculon-ai/calculon.
serving    aiconfigurator: its search of deployments (not disaggregated) of Qwen3-32B on 8 H200
           under vLLM, six pairs of lengths; then the same layouts, batches, token budgets and
           lengths here, all combinations of them.

Printed are CPU seconds and wall seconds of one process, imports apart, the median of `--rounds`: of
the work when it is first done, which reads tables or loads kernels from the cache, and when it is
done again. What cannot be installed or does not run is a line with its reason. Answers are not
compared: they are about different things (docs/speed.md).

    taskset -c 1 python benchmarks/speed/peers.py [--only PEER] [--calculon FOLDER] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

INDEX = {
    "llm-analysis": "llm-analysis==0.2.2",
    "aiconfigurator": "aiconfigurator==0.12.0",
    "calculon": "psutil",  # all that it needs
}
PEERS = tuple(INDEX)
NO_CALCULON = (
    "not installed: calculon 1.1.1 of the package index is another program (producers and "
    "consumers in threads); give --calculon FOLDER, a checkout of calculon-ai/calculon"
)
BATCHES = [2048 * (i + 1) for i in range(256)]
"""Every strategy of the first divides each of them."""
DEVICES, SEQUENCE = 1024, 2048
AXES: dict[str, Any] = {
    "tensor_parallel": [1, 2, 4, 8],
    "sequence_parallel": True,
    "context_parallel": 1,
    "virtual_pipeline": 1,
    "micro_batch_size": [1, 2, 4],
    "recompute": ["none", "selective", "full"],
    "zero_stage": [0, 1],
}
FIELDS = ("tensor_parallel", "pipeline_parallel", "data_parallel", "micro_batch_size", "zero_stage")
LENGTHS = [(inputs, outputs) for inputs in (1024, 4000, 8192) for outputs in (256, 1000)]
Work = Callable[[], dict[str, Any]]


def llm_analysis_work(given: dict[str, Any]) -> Work:
    """Return a call that analyses strategies until the seconds are over."""
    import logging

    from llm_analysis import analysis as it

    it.logger.setLevel(logging.CRITICAL)  # as shipped it prints a page for each
    model = it.get_model_config_by_name("megatron-lm-175b")
    fixed = (
        model,
        it.get_gpu_config_by_name("h100-sxm-80gb"),
        it.get_dtype_config_by_name("w16a16e16"),
    )

    def one(row: dict[str, Any], batch: int) -> object:
        tensor, pipeline, data, micro, zero = (row[name] for name in FIELDS)
        degrees = it.ParallelismConfig(tensor, pipeline, data, 1, tensor)
        return it.LLMAnalysis(*fixed, degrees).training(
            batch_size_per_gpu=micro,
            global_batch_size=batch,
            seq_len=SEQUENCE,
            activation_recomputation=it.ActivationRecomputation[row["recompute"].upper()],
            ds_zero=it.DSZeRO(zero),
        )

    return lambda: until(given, one)


def calculon_work(given: dict[str, Any]) -> Work:
    """Return a call that runs Calculon until the seconds are over."""
    import logging

    sys.path.insert(0, given["calculon"])  # its setup.py leaves its inner packages out
    from calculon import System
    from calculon.llm import Llm

    folder, silent = Path(given["calculon"]), logging.getLogger("silent")
    silent.setLevel(logging.CRITICAL)
    system = System(json.loads((folder / "systems" / "h100_80g_nvl8.json").read_text()))
    shape = json.loads((folder / "models" / "gpt3-175B.json").read_text())
    recompute = {"none": "none", "selective": "attn_only", "full": "full"}

    def one(row: dict[str, Any], batch: int) -> object:
        tensor, pipeline, data, micro, zero = (row[name] for name in FIELDS)
        degrees = {
            **{"num_procs": DEVICES, "batch_size": batch, "microbatch_size": micro},
            **{"tensor_par": tensor, "pipeline_par": pipeline, "data_par": data},
            **{"tensor_par_net": 0, "pipeline_par_net": 1, "data_par_net": 1},
            **{"datatype": "float16", "activation_recompute": recompute[row["recompute"]]},
            **{"pipeline_interleaving": 1, "optimizer_sharding": zero > 0, "training": True},
            **{"tensor_par_comm_type": "rs_ag", "seq_par_ag_redo": False},
            **{"tensor_par_overlap": "none", "attention_type": "multihead", "fused_activation": 1},
            **{"data_par_overlap": True, "weight_offload": False, "activations_offload": False},
            **{"optimizer_offload": False},
        }
        model = Llm(Llm.Application(shape), silent)
        model.compile(system, Llm.Execution.from_json(degrees))
        model.run(system)
        return model.get_stats_json(False)

    return lambda: until(given, one, Llm.Error)


def until(
    given: dict[str, Any],
    one: Callable[[dict[str, Any], int], object],
    refused: type[Exception] = AssertionError,
) -> dict[str, Any]:
    """Ask for all strategies of one batch after the other until the seconds are over."""
    rows = json.loads(Path(given["rows"]).read_text())
    end, answered, batches = time.process_time() + given["seconds"], 0, 0
    for batch in BATCHES:
        for row in rows:
            try:
                one(row, batch)
            except refused:
                continue
            answered += 1
        batches += 1
        if time.process_time() > end:
            break
    return {"count": batches * len(rows), "answered": answered, "batches": batches}


def aiconfigurator_work(given: dict[str, Any]) -> Work:
    """Return a call that searches deployments for all lengths."""
    from aiconfigurator.sdk import sweep
    from aiconfigurator.sdk.task_v2 import Task

    about = {"serving_mode": "agg", "model_path": "Qwen/Qwen3-32B", "system_name": "h200_sxm"}
    limits = {"backend_name": "vllm", "total_gpus": 8, "ttft": 1e6, "tpot": 1e4}
    tasks = [Task(isl=one, osl=other, **about, **limits) for one, other in LENGTHS]

    def search() -> dict[str, Any]:
        return {"kept": sum(len(task.run()) for task in tasks)}

    def counted() -> dict[str, Any]:
        """Search once more and see what is asked: each point once for each of many targets."""
        asked: list[tuple[int, ...]] = []
        usual = sweep.predict_agg_worker

        def noted(**how: Any) -> Any:
            of, load = how["model"].config, how["runtime_config"]
            layout = of.tp_size, of.pp_size, of.attention_dp_size
            asked.append((*layout, load.batch_size, how["ctx_tokens"], load.isl, load.osl))
            return usual(**how)

        sweep.predict_agg_worker = noted
        search()
        sweep.predict_agg_worker = usual
        found = sorted(set(asked))
        return {"count": len(found), "asked": len(asked), "points": found}

    search.counted = counted  # type: ignore[attr-defined]
    return search


def training_work(given: dict[str, Any]) -> Work:
    """Return a call that sweeps the same strategies here, or a full grid."""
    import numpy as np

    from perfmodel import strategy_grid, sweep

    def projected() -> dict[str, Any]:
        axes, batches = AXES, BATCHES[: given["batches"]]
        if given.get("full"):
            from sweep import AXES as full_grid

            axes, batches = full_grid, BATCHES[:24]
        model, hardware = "gpt3-175b", "dgx-h100"
        sizes: dict[str, Any] = {"sequence_length": SEQUENCE, "global_batch_size": batches}
        grid = strategy_grid(model, DEVICES, **sizes, **axes)
        found = sweep(model, grid, hardware, dtype=np.float32, threads=1)
        answered = int(np.isfinite(found["step_time"].values).sum())
        return {"count": len(grid), "answered": answered}

    return projected


def serving_work(given: dict[str, Any]) -> Work:
    """Return a call that serves the layouts, budgets, batches and lengths of a list of points."""
    import numpy as np

    from perfmodel import load_grid, serve, serving_grid

    axes = [sorted(set(axis)) for axis in zip(*given["points"], strict=True)]
    tensor, pipeline, data, batch, budget, inputs, outputs = axes

    def projected() -> dict[str, Any]:
        model, hardware = "qwen3-32b", "dgx-h200"
        layouts: dict[str, Any] = {"tensor_parallel": tensor, "pipeline_parallel": pipeline}
        layouts |= {"attention_data_parallel": data, "token_budget": budget}
        grid = serving_grid(model, hardware, engine="vllm", **layouts)
        loads = load_grid(input_length=inputs, output_length=outputs, concurrency=batch)
        found = serve(model, grid, loads, hardware)["tokens_per_second_per_device"].values
        return {"count": found.size, "answered": int(np.isfinite(found).sum())}

    return projected


WORKS: dict[str, Callable[[dict[str, Any]], Work]] = {
    "llm-analysis": llm_analysis_work,
    "calculon": calculon_work,
    "aiconfigurator": aiconfigurator_work,
    "training": training_work,
    "serving": serving_work,
}


def worked(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Do one piece of work in this process, so often as is asked; return what it took."""
    call = WORKS[name](given)
    lines: dict[str, dict[str, Any]] = {}
    for when in ("first", "again")[: given["times"]]:
        cpu, wall = time.process_time(), time.perf_counter()
        found = call()
        taken = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
        lines[when] = {**found, **taken}
    counted: dict[str, Any] = getattr(call, "counted", dict)()
    package = {"training": "perfmodel", "serving": "perfmodel"}.get(name, name)
    known = given["calculon"] if name == "calculon" else version(package)
    return {"version": known, "lines": lines, **counted}


def asked(python: str | Path, name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Do one piece of work in a process of its own.

    Raises
    ------
    RuntimeError
        It fails; says the last line that it wrote.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        command = [str(python), __file__, "--work", name, json.dumps(given), str(answer)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
        if done.returncode:
            raise RuntimeError((done.stderr.strip() or "no message").splitlines()[-1])
        found: dict[str, Any] = json.loads(answer.read_text())
    return found


def installed(name: str, folder: Path, calculon: str | None) -> Path:
    """Return the Python of an environment that has one of the others.

    Raises
    ------
    RuntimeError
        It cannot be installed; says why.
    """
    if name == "calculon" and calculon is None:
        raise RuntimeError(NO_CALCULON)
    python = folder / name / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
    command = [str(python), "-m", "pip", "install", "--quiet", INDEX[name]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reasons = [one for one in done.stderr.splitlines() if one.startswith("ERROR")]
        raise RuntimeError(f"pip does not install it: {(reasons or ['no message'])[-1]}")
    return python


def side_by_side(name: str, python: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Let one of the others and this model work in turn; return the lines of the table."""
    theirs: list[dict[str, Any]] = []
    ours: dict[str, list[dict[str, Any]]] = {}
    given: dict[str, Any] = {"seconds": arguments.seconds, "calculon": arguments.calculon}
    given["times"] = 2 if name == "aiconfigurator" else 1  # the others keep nothing
    with tempfile.TemporaryDirectory() as folder:
        if name != "aiconfigurator":
            given["rows"] = str(Path(folder, "rows.json"))
            Path(given["rows"]).write_text(json.dumps(strategies()))
        for _ in range(arguments.rounds):
            theirs.append(asked(python, name, given))
            for label, work, same in own_works(name, theirs[-1]):
                ours.setdefault(label, []).append(asked(sys.executable, work, same))
    lines = [one for label, own in ours.items() for one in medians(label, own)]
    return [*medians(name, theirs), *lines]


def own_works(name: str, found: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return what this model does beside one of the others: label, work and what it is given."""
    if name == "aiconfigurator":
        return [("perfmodel", "serving", {"times": 2, "points": found["points"]})]
    same = {"times": 2, "batches": found["lines"]["first"]["batches"]}
    return [
        ("perfmodel", "training", same),
        ("perfmodel, full grid", "training", {**same, "full": True}),
    ]


def strategies() -> list[dict[str, Any]]:
    """Return the strategies of one batch, as all are given them."""
    from perfmodel import strategy_grid

    sizes: dict[str, Any] = {"sequence_length": SEQUENCE, "global_batch_size": BATCHES[0]}
    grid = strategy_grid("gpt3-175b", DEVICES, **sizes, **AXES)
    names = [AXES["recompute"][it] for it in grid["recompute"]]
    columns = [grid[name].tolist() for name in FIELDS]
    return [
        {**dict(zip(FIELDS, numbers, strict=True)), "recompute": name}
        for name, *numbers in zip(names, *columns, strict=True)
    ]


def medians(label: str, found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return lines of the table, one for each time that the work is done."""
    lines = []
    for when in found[0]["lines"]:
        own = [{**one, **one["lines"][when]} for one in found]
        line = {"who": label, "version": found[0]["version"], "when": when}
        line |= {name: own[-1][name] for name in ("count", "answered", "asked") if name in own[-1]}
        for name in ("cpu", "wall"):
            line[f"{name}_seconds"] = statistics.median(one[name] for one in own)
        line["rate_per_core"] = statistics.median(one["count"] / one["cpu"] for one in own)
        lines.append(line)
    return lines


def main(given: Sequence[str] | None = None) -> int:
    """Parse arguments, install, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PEERS, action="append")
    parser.add_argument("--calculon", help="a checkout of calculon-ai/calculon")
    parser.add_argument("--seconds", type=float, default=20.0, help="of training, for each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--environments", type=Path, help="kept there; else made anew")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(given)
    if arguments.work:
        name, about, answer = arguments.work
        Path(answer).write_text(json.dumps(worked(name, json.loads(about))))
        return 0
    found = []
    with tempfile.TemporaryDirectory() as made:
        for name in arguments.only or PEERS:
            try:
                python = installed(name, arguments.environments or Path(made), arguments.calculon)
                found += side_by_side(name, python, arguments)
            except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
                found.append({"who": name, "reason": str(error)})
    print(json.dumps(found, indent=2) if arguments.json else "\n".join(table(found)))
    return 0


def table(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines as a table, and how busy the machine was."""
    lines = ["| | | configurations | CPU [s] | wall [s] | a second and core |"]
    lines.append("|---|---|---:|---:|---:|---:|")
    for one in found:
        if "reason" in one:
            lines.append(f"| {one['who']} | {one['reason']} | | | | |")
            continue
        numbers = f"{one['cpu_seconds']:.2f} | {one['wall_seconds']:.2f}"
        count = f"{one['count']:,}"
        if "asked" in one:
            count += f" ({one['asked'] / one['count']:.0f} times each)"
        lines.append(
            f"| {one['who']} {one['version']} | {one['when']} | {count} | {numbers} "
            f"| {one['rate_per_core']:,.0f} |"
        )
    return [*lines, f"\nload of the machine, {os.cpu_count()} cores: {os.getloadavg()[1]:.1f}"]


if __name__ == "__main__":
    sys.exit(main())
