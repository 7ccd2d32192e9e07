"""Record what the program answers, or check that it still answers the same, bit for bit.

    python benchmarks/unchanged.py record [--data DATA] [--only PREFIX …] [--keep FOLDER]
    python benchmarks/unchanged.py check  [--data DATA] [--only PREFIX …] [--keep FOLDER] [--json]

For changes of structure: what is printed and written must not change in a single bit. The
cases below run through the command line, whose words outlive any move of the code; what
each prints (as JSON), its exit code and the files it writes become one digest each in
``unchanged.json`` beside this script. DATA is the folder with ``measured/``, ``e2e/``,
``astra/`` and ``aicb/``; without it the cases that read it are left out. ``--keep`` stores
the answers themselves, so that two trees' folders can be compared with ``diff -r``. Texts that
changed on purpose stand in ``unchanged_words.toml``; both read them as they were.

Digests hold on the kind of processor that recorded them: NumPy picks its ``exp`` and
``log`` by instruction set, and those may differ in the last bit.
Exit code 1 where an answer differs.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

DIGESTS = Path(__file__).with_name("unchanged.json")
WORDS = Path(__file__).with_name("unchanged_words.toml")
PARITY = Path(__file__).with_name("parity.py")
# Attributes that name versions and the fields of our own classes, not results.
NOT_RESULTS = ("provenance", "source", "history")

Case = tuple[str, str]

DENSE = "--seq-len 4096 --global-batch 256"
STEPS = (
    "--devices 8 --zero 3 --recompute full",
    "--devices 64 --tp 8 --pp 2 --micro-batch 2",
    "--devices 128 --tp 4 --pp 4 --vpp 2 --recompute selective",
    "--devices 64 --tp 2 --cp 4 --cp-kind all_gather --zero 2",
    "--devices 256 --tp 8 --pp 2 --precision fp8",
)
EXPERTS = (
    "--devices 64 --ep 8 --pp 2",
    "--devices 128 --tp 2 --ep 8 --etp 1 --zero 3 --recompute full",
    "--devices 64 --tp 4 --ep 4 --etp 4 --pp 2 --precision fp8",
)
EXPLAINED = (
    "dgx-a100", "dgx-b200", "gb200-nvl72", "mi300x-server", "mi355x-server", "tpu-v5p-pod",
    "tpu-v6e-pod", "trn2-48xl", "l40s-server", "h100-pcie",
)  # fmt: skip
FRAMEWORKS = [
    "megatron",
    "megatron-tuned",
    "megatron-deepep",
    "megatron-2021",
    "megatron-2022",
    "fsdp",
    "torchtitan",
    "maxtext",
]


def project_cases() -> Iterator[Case]:
    """Yield single strategies: models, hardware, degrees, software."""
    models = ("llama-3.1-8b", "gpt3-13b", "qwen3-32b", "gemma-2-27b", "bloom-176b", "llama-2-70b")
    for model, step in itertools.product(models, STEPS):
        yield "project", f"--model {model} --hardware dgx-h100 {DENSE} {step}"
    for hardware in ("dgx-a100", "dgx-b200", "mi300x-server", "mi355x-server", "tpu-v5p-pod"):
        for step in STEPS[:3]:
            yield "project", f"--model llama-3.1-8b --hardware {hardware} {DENSE} {step}"
    for hardware in ("dgx-1-v100", "l40s-server", "trn2-48xl", "gb200-nvl72", "h100-pcie"):
        yield "project", f"--model llama-3.1-8b --hardware {hardware} {DENSE} {STEPS[1]}"
    for model, step in itertools.product(
        ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2", "gpt-oss-20b", "minimax-m2"), EXPERTS
    ):
        yield "project", f"--model {model} --hardware dgx-h100 {DENSE} {step}"
    for framework in FRAMEWORKS:
        for model, step in (("llama-3.1-8b", STEPS[1]), ("mixtral-8x7b", EXPERTS[1])):
            words = f"--model {model} --hardware dgx-h100 {DENSE} {step} --framework {framework}"
            yield "project", words
    yield "project", f"--model llama-3.1-8b --hardware dgx-h100 {DENSE} --devices 64 --tp 3"


def explain_cases() -> Iterator[Case]:
    """Yield operation tables of single strategies."""
    for model, step in (
        *itertools.product(("llama-3.1-8b", "gpt3-13b"), STEPS),
        *itertools.product(("mixtral-8x7b", "deepseek-v2"), EXPERTS),
    ):
        yield "explain", f"--model {model} --hardware dgx-h100 {DENSE} {step}"
    for hardware in EXPLAINED:
        yield "explain", f"--model llama-3.1-8b --hardware {hardware} {DENSE} {STEPS[1]}"
    for framework in FRAMEWORKS:
        words = f"--model deepseek-v2 --hardware dgx-b200 {DENSE} {EXPERTS[0]}"
        yield "explain", f"{words} --framework {framework}"


def serve_cases() -> Iterator[Case]:
    """Yield served models: engines, machines, loads, pools, drafts, phases, the fewest devices."""
    load = "--isl 2048 --osl 512"
    for engine, hardware in itertools.product(
        ("vllm", "sglang", "trtllm"), ("dgx-h100", "dgx-b200", "mi300x-server")
    ):
        words = f"--hardware {hardware} --engine {engine} {load} --concurrency 1:256:x4"
        yield "serve", f"--model llama-3.1-70b --tp 4,8 {words}"
        yield "serve", f"--model gpt-oss-120b --tp 2 --length-range 0.8 --rounds 10 {words}"
    for model in ("deepseek-v3", "qwen3-next-80b-a3b", "gemma-2-27b", "nemotron-nano-9b-v2"):
        yield "serve", f"--model {model} --hardware dgx-h200 --tp 8 {load} --rate 0.5,2"
    experts = "--model deepseek-v3 --hardware gb200-nvl72 --dp-attention 8 --ep 8"
    yield "serve", f"{experts} {load} --concurrency 64,1024 --speculative mtp:1,2:0.8"
    yield "serve", f"{experts} {load} --concurrency 256 --prefill tp=4,workers=1:3:3"
    yield "serve", f"{experts} --phase decode --batch 8,64 {load}"
    yield "size", f"--model qwen3-32b --hardware dgx-h200,dgx-b200 --rate 10 {load} --ttft-p95 2"


def kernel_cases() -> Iterator[Case]:
    """Yield grids of single kernels."""
    devices = ("dgx-a100", "dgx-h100", "dgx-b200", "mi300x-server", "mi355x-server", "l40s-server")
    for device in devices:
        shape = "--m 1:16384:x4 --n 4096,14336 --k 4096"
        yield "kernel gemm", f"--hardware {device} {shape} --precision bf16,fp8,fp8_block"
        yield "kernel gemm", f"--hardware {device} {shape} --steady --batch 1,8"
        shape = "--groups 8,64 --m 16,512 --n 4096 --k 7168"
        yield "kernel gemm", f"--hardware {device} {shape} --launches one,each"
        heads = "--heads 32 --kv-heads 8"
        lengths = "--q-len 128:16384:x4"
        yield "kernel attention", f"--hardware {device} {heads} {lengths} --phase forward,backward"
        yield (
            "kernel attention",
            f"--hardware {device} {heads} --phase decode --batch 1,16,256 --kv-len 512,8192 "
            "--kv-precision same,fp8",
        )
        names = "copy,rms_norm,gated,softmax,cross_entropy,quantise_fp8_block,layer_norm_backward"
        yield "kernel stream", f"{names} --hardware {device} --rows 1:65536:x8 --columns 8192"
        layer = "--tokens 1:8192:x8 --hidden 4096 --intermediate 14336 --experts 8 --top-k 2"
        yield (
            "kernel moe",
            f"--hardware {device} {layer} --routing balanced,uniform,power_law_1.2,dirichlet",
        )
    latent = "--heads 128 --kv-heads 1 --head-dim 576 --head-dim-v 512 --latent --phase decode"
    for device, precision in (
        ("dgx-a100", "bf16"),
        ("dgx-h100", "fp8_block"),
        ("dgx-b200", "nvfp4"),
    ):
        yield "kernel attention", f"--hardware {device} {latent} --batch 1,64 --kv-len 4096"
        layer = "--tokens 64,4096 --hidden 7168 --intermediate 2048 --experts 256 --top-k 8 --ep 8"
        yield "kernel moe", f"--hardware {device} {layer} --precision {precision}"
    for kernel in ("triton", "triton_tuned", "trtllm", "cutlass", "aiter"):
        layer = "--tokens 64,4096 --hidden 4096 --intermediate 14336 --experts 8 --top-k 2"
        yield "kernel moe", f"--hardware dgx-h100 {layer} --kernel {kernel}"
    yield "kernel stream", "--hardware dgx-h100 --bytes-read 1000:1000000000:x10"
    yield (
        "kernel gemm",
        "--hardware dgx-h100 --m 4096 --n 4096 --k 4096 --sweep device.tdp=400:700:4",
    )


def collective_cases() -> Iterator[Case]:
    """Yield grids of collectives, with and without the library's own choice."""
    names = [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "broadcast",
        "point_to_point",
    ]
    size = "--size 1KiB:1GiB:x16"
    for name in names:
        many = "dgx-a100,dgx-h100,dgx-b200,mi300x-server,mi355x-server"
        ranks = "--members 2" if name == "point_to_point" else "--members 2,8,64"
        yield "collective", f"{name} --hardware {many} {size} {ranks}"
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for hardware in ("tpu-v5p-pod", "trn2-48xl", "h100-pcie", "gb200-nvl72", "astra-system-1"):
            yield "collective", f"{name} --hardware {hardware} {size} --members 4,16"
    algorithms = (
        "auto,ring,bidirectional_ring,direct,halving_doubling,recursive_doubling,"
        "double_binary_tree,hierarchical,in_network"
    )
    words = f"all_reduce --hardware dgx-h100 {size} --members 64 --members-per-node 1,8"
    yield "collective", f"{words} --algorithm {algorithms}"
    yield "collective", f"{words} --protocol auto,low_latency,low_latency_128,simple"
    yield "collective", f"all_gather --hardware dgx-h100 {size} --members 8 --stride 8"
    for algorithm in ("ring", "direct", "halving_doubling", "double_binary_tree", "hierarchical"):
        words = f"--operation all_reduce --algorithm {algorithm} --size 1GiB"
        yield "topology show", f"--hardware dgx-h100 --devices 32 {words}"
    for dimension in ("mesh:4x4:200e9:1e-6", "torus:4x4x2:90e9:1e-6", "fat-tree:64:50e9:3e-6:2"):
        yield "topology show", f"--dimension {dimension} --operation all_to_all --size 64MiB"


def sweep_cases() -> Iterator[Case]:
    """Yield whole sweeps as netCDF: the first is the demo's, the last in single precision."""
    for words in (
        "--model llama-3.1-70b --hardware dgx-h100 --devices 1024 --seq-len 8192 "
        "--global-batch 2048",
        "--model llama-3.1-8b --hardware dgx-h100,dgx-b200 --devices 64 --seq-len 4096 "
        "--global-batch 512 --precision bf16,fp8",
        "--model gpt3-175b --hardware dgx-a100 --devices 512 --seq-len 2048 --global-batch 1536",
        "--model mixtral-8x7b --hardware dgx-h100 --devices 128 --seq-len 4096 --global-batch 256",
        "--model deepseek-v3 --hardware dgx-h100 --devices 512 --seq-len 4096 "
        "--global-batch 2048 --tp 1,2 --ep 8,64 --framework megatron-deepep",
        "--model qwen3-30b-a3b --hardware mi355x-server --devices 64 --seq-len 4096 "
        "--global-batch 256",
        "--model llama-3.1-8b --hardware tpu-v5p-pod --devices 256 --seq-len 8192 "
        "--global-batch 512 --framework maxtext",
        "--model llama-3.1-70b --hardware dgx-h100 --devices 256 --seq-len 8192 "
        "--global-batch 512 --zero 3 --framework fsdp --shard-group 0,8,64",
        "--model llama-3.1-70b --hardware dgx-h100 --devices 1024 --seq-len 8192 "
        "--global-batch 2048 --tp 8 --pp 4 --sweep system.network.1.bandwidth=25e9:400e9:16",
        "--model gpt3-13b --hardware dgx-1-v100 --devices 64 --seq-len 2048 --global-batch 512 "
        "--precision fp16 --framework megatron-2021",
        "--model llama-3.1-8b --hardware dgx-h100 --devices 64 --seq-len 65536 "
        "--global-batch 64 --cp 1,2,4,8 --cp-kind ring,all_to_all,all_gather",
    ):
        width = "" if "--cp-kind" in words else " --float64"
        yield "sweep", words.replace(",dgx-b200", " --hardware dgx-b200") + width + " -o sweep.nc"


def workload_cases() -> Iterator[Case]:
    """Yield files of other tools, written from projections and by their own rules."""
    for model, step in (
        ("llama-3.1-8b", "--devices 16 --tp 4 --pp 2 --global-batch 16 --seq-len 8192"),
        ("llama-3.1-8b", "--devices 16 --zero 3 --framework fsdp --global-batch 32 --seq-len 4096"),
        ("mixtral-8x7b", "--devices 16 --ep 8 --tp 2 --etp 1 --global-batch 16 --seq-len 4096"),
    ):
        words = f"--model {model} --hardware dgx-h100 {step}"
        yield "workload chakra", f"{words} -o trace && simulate trace --hardware dgx-h100 --json"
        yield "workload astra-text", f"{words} -o text.txt"
        yield "workload aicb", f"{words} -o aicb.txt"
    options = (
        "--num_layers=4 --hidden_size=4096 --num_attention_heads=32 --seq_length=4096 "
        "--vocab_size=50257 --swiglu --use_flash_attn --world_size=8 --tensor_model_parallel_size=2"
    )
    yield "workload aiob", f"--hardware dgx-h100 {options} -o aiob.txt"
    yield "workload aiob", f"--hardware dgx-b200 {options} -o aiob.txt"
    yield (
        "workload stage",
        "--dp 2 --tp 2 --sp 2 --num-stacks 2 --dmodel 512 --dff 1024 --head 8 --seq 256 "
        "--batch 16 --din 1000 --dout 1000 -o stage",
    )
    for pattern in ("chained", "pipeline"):
        yield (
            "workload synthetic",
            f"{pattern} --devices 4 -o trace && simulate trace --hardware dgx-h100 --json",
        )


def wafer_cases() -> Iterator[Case]:
    """Yield models on meshes of cores, mappings that are searched, experts on a wafer."""
    yield "wafer", "--model llama-3-8b --hardware wse-2,wse-3 --grid 420,540 --context 4096"
    yield "wafer", "--model deepseek-v3 --hardware wse-2 --phase prefill --grid 600 --context 1024"
    yield "wafer", "--model qwen3-32b --hardware quietbox --batch 32 --context 128"
    yield "wafer", "--model llama-3-8b --hardware wse-2 --map search --grid 300,420 --context 4096"
    yield (
        "wafer",
        "experts --model mixtral-8x7b --hardware wse-2 --node-grid 2x4 --core-grid 4x4 --ep 8 "
        "--tp 8 --batch 64 --isl 128 --routing two_level",
    )


def list_cases() -> Iterator[Case]:
    """Yield what is known by name."""
    yield "model list", ""
    yield "hardware list", ""
    for model in ("llama-3.1-70b", "deepseek-v3", "gpt-oss-120b", "gemma-3-27b", "minimax-m2"):
        yield "model show", model


def data_cases() -> Iterator[Case]:
    """Yield comparisons with measured tables and with other tools' outputs."""
    for kind, file in (
        ("training", "e2e/dev_training_runs.csv"),
        ("gemm", "measured/gemm.csv"),
        ("gemm", "measured/gemm_training.csv"),
        ("gemm", "measured/gemm_fp32.csv"),
        ("gemm", "measured/more/gemm.csv"),
        ("attention", "measured/attention.csv"),
        ("attention", "measured/attention_fwd_bwd.csv"),
        ("mla", "measured/mla.csv"),
        ("moe", "measured/moe.csv"),
        ("moe", "measured/grouped_gemm_training.csv"),
        ("moe-alltoall", "measured/moe_alltoall.csv"),
        ("stream", "measured/elementwise.csv"),
        ("stream", "measured/training_ops.csv"),
        ("collective", "measured/collective.csv"),
        ("collective", "primus/measured_rccl_mi355x.csv"),
        ("wafer", "wse/wafer_published_dev.csv"),
    ):
        yield "compare", f"{kind} data/{file}"
    for kind, path in (
        ("astra", "astra/collectives_unaware.csv"),
        ("astra", "astra/collectives_aware.csv"),
        ("simai", "aicb/simai_analytical"),
        ("aicb", "aicb"),
        ("astra-text", "astra/text"),
        ("stage", "astra"),
        ("wse", "wse"),
    ):
        yield "parity", f"{kind} data/{path}"


PRINTS_JSON = (
    "project", "explain", "kernel", "collective", "topology", "compare", "model", "hardware",
    "serve", "size", "wafer",
)  # fmt: skip
GROUPS = (
    list_cases, project_cases, explain_cases, serve_cases, kernel_cases, collective_cases,
    sweep_cases, workload_cases, wafer_cases, data_cases,
)  # fmt: skip


def netcdf_text(path: Path) -> bytes:
    """Return what a netCDF file means: values and descriptions, not its compressed bytes."""
    import xarray as xr

    lines: list[bytes] = []
    with xr.open_dataset(path, engine="netcdf4", decode_cf=False) as dataset:
        attributes = {key: str(v) for key, v in dataset.attrs.items() if key not in NOT_RESULTS}
        lines.append(json.dumps(attributes, sort_keys=True).encode())
        for name, variable in sorted(dataset.variables.items(), key=lambda pair: str(pair[0])):
            facts = {key: str(value) for key, value in sorted(variable.attrs.items())}
            values = variable.values
            content = "\n".join(map(str, values.ravel())) if values.dtype.kind in "OSU" else ""
            digest = hashlib.sha256(content.encode() or values.tobytes()).hexdigest()
            head = f"{name} {variable.dims} {values.dtype} {values.shape} {facts}"
            lines.append(f"{head} {digest}".encode())
    return b"\n".join(lines)


def run_perfmodel(words: list[str]) -> tuple[int, str]:
    """Run one command in this process; return its exit code and what it printed."""
    from perfmodel.cli.main import cli

    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            cli(words, prog_name="perfmodel")
    except SystemExit as stop:
        return int(stop.code or 0), printed.getvalue()
    return 0, printed.getvalue()


def answer(case: Case, data: Path | None) -> bytes:
    """Run a case in an empty folder; return all that it printed and wrote, as bytes."""
    command, words = case
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            if data is not None:
                Path("data").symlink_to(data)
            if command == "parity":
                call = [sys.executable, str(PARITY), *words.split(), "--json"]
                done = subprocess.run(call, capture_output=True, text=True, check=False)
                parts = [f"exit {done.returncode}\n{done.stdout}".encode()]
            else:
                parts = []
                flag = " --json" if command.split()[0] in PRINTS_JSON else ""
                for one in f"{command} {words}{flag}".split(" && "):
                    code, printed = run_perfmodel(one.split())
                    parts.append(f"exit {code}\n{printed}".encode())
            for path in sorted(Path().glob("*")):
                if path.is_file():
                    content = netcdf_text(path) if path.suffix == ".nc" else path.read_bytes()
                    parts.append(path.name.encode() + b"\n" + content)
        finally:
            os.chdir(before)
    return b"\n".join(parts)


def in_old_words(content: bytes, words: dict[str, str]) -> bytes:
    """Return an answer with the texts that changed on purpose (new: old) as they were."""
    for new, old in words.items():
        for form in (repr, str):
            content = content.replace(form(new).encode(), form(old).encode())
    return content


def main() -> int:
    """Record or check; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("record", "check"))
    parser.add_argument("--data", type=Path, help="folder of development data")
    parser.add_argument("--only", nargs="*", default=[""], help="first words of the cases to run")
    parser.add_argument("--keep", type=Path, help="folder for the answers themselves")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    stored: dict[str, str] = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
    found: dict[str, str] = {}
    words: dict[str, str] = tomllib.loads(WORDS.read_text(encoding="utf-8"))
    data = options.data.resolve() if options.data else None
    keep = options.keep.resolve() if options.keep else None
    for group in GROUPS:
        if group is data_cases and data is None:
            continue
        for case in group():
            name = " ".join(case).strip()
            if name.startswith(tuple(options.only)):
                content = in_old_words(answer(case, data), words)
                found[name] = hashlib.sha256(content).hexdigest()[:16]
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / hashlib.sha256(name.encode()).hexdigest()[:12]).write_bytes(
                        name.encode() + b"\n" + content
                    )
    if options.what == "record":
        DIGESTS.write_text(json.dumps(stored | found, indent=0) + "\n")
        print(f"recorded {len(found)} answers in {DIGESTS.name}")
        return 0
    differing = [name for name, digest in found.items() if stored.get(name) != digest]
    if options.json:
        document = {"count": len(found), "equal": len(found) - len(differing)}
        print(json.dumps(document | {"differing": differing}, indent=2))
    else:
        for name in differing:
            print(f"differs: {name}" if name in stored else f"not recorded: {name}")
        print(f"{len(found) - len(differing)} of {len(found)} answers equal")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
