"""Good command lines, and the small files that they read, for `fuzz_commands.py` to damage."""

from __future__ import annotations

import json
import re
from pathlib import Path

import fuzz_formats
import ui_questions

import perfmodel

MODEL = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}
EXPERTS = MODEL | {
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
PROFILE = """\
name = "mine"
extends = "dgx-h100"
title = "A faster DGX"
aliases = ["fast"]
[device]
tdp = 650.0
[device.memory]
bandwidth = 4.8e12
[device.peak_flops]
bf16 = 1.1e15
"""
CONFIG = """\
model = "model.json"
hardware = "dgx-h100"
devices = 8
seq-len = 1024
global-batch = 8
tp = 2
[set]
device.memory.bandwidth = 4.8e12
"""
RING = """\
topology: [ Ring ]
npus_count: [ 4 ]
bandwidth: [ 50.0 ]  # GB/s
latency: [ 500.0 ]  # ns
"""
SYSTEM = {
    "scheduling-policy": "LIFO",
    "endpoint-delay": 10,
    "active-chunks-per-dimension": 1,
    "preferred-dataset-splits": 2,
    "all-reduce-implementation": ["ring"],
    "all-gather-implementation": ["ring"],
    "reduce-scatter-implementation": ["ring"],
    "all-to-all-implementation": ["ring"],
    "collective-optimization": "localBWAware",
    "local-mem-bw": 1600,
    "roofline-enabled": 1,
    "peak-perf": 100,
}
NATIVE_RING = {
    "topology-name": "Hierarchical",
    "topologies-per-dim": ["Ring"],
    "dimension-type": ["N"],
    "dimensions-count": 1,
    "units-count": [4],
    "links-count": [2],
    "link-latency": [500],
    "link-bandwidth": [25],
    "nic-latency": [0],
    "router-latency": [0],
    "hbm-latency": [500],
    "hbm-bandwidth": [370],
    "hbm-scale": [0],
}
NATIVE_SYSTEM = re.sub(": ring_.*", ": ring", fuzz_formats.EXAMPLES["astra-system"])
AICB = """\
HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 vpp: 1 ga: 1 \
all_gpus: 16 checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0
2
grad_gather\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tALLGATHER\t1073741824\t100
attention_layer\t-1\t1000\tALLREDUCE\t8388608\t2000\tNONE\t0\t3000\tNONE\t0\t100
"""
DATA_PARALLEL = (
    "DATA\n2\n"
    "first\t-1\t1000\tNONE\t0\t2000\tNONE\t0\t3000\tALLREDUCE\t1048576\t10\n"
    "second\t-1\t4000\tNONE\t0\t5000\tNONE\t0\t6000\tALLREDUCE\t2097152\t10\n"
)
NCCL = """\
# nThread 1 nGpus 8 minBytes 1024 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
#   Rank  0 Pid   2041 on      gpu-a device  0 [0x07] Tesla V100-SXM2-32GB
#   Rank  1 Pid   2042 on      gpu-a device  1 [0x0a] Tesla V100-SXM2-32GB
#
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     8388608        524288   float   410.00   20.46   15.34  0e+00   400.00   20.97   15.73  0e+00
# Avg bus bandwidth    : 28.9575
"""
PAGES = Path(perfmodel.__file__).parent / "model" / "families"
READ_AS = {"deepseek_v3": "deepseek-v3", "qwen3_next": "qwen3-next-80b-a3b"}
"""Pages of families that are damaged, and a model that each reads."""
PAGE = """\
like = "mixtral"
ignore = ["rope_theta"]

[names]
n_head = ["num_attention_heads"]

[defaults]
dense_layers = 1
wide = [2, 4]

[let]
inner = "= intermediate_size * (2 if i % 2 else 1)"
window = "= min(max_position_embeddings, 2**10) if i in wide else 0"

[refuse]
rotary = "= hidden_size % n_head"

[model]
tied_embeddings = "= vocab_size < 2000 and not dense_layers > 3"

[layer]
mlps = "= 'dense' if i < dense_layers else 'experts'"

[mixer.attention]
window = "= window"

[mlp.dense]
intermediate_size = "= inner + sum([16, 16])"

[mlp.experts]
extra = [{ name = "bias", kind = "vector", outputs = "= num_local_experts" }]
"""
LAUNCHED = {"torchtitan": "toml", "maxtext": "yml", "deepspeed": "ds.sh", "primus": "yaml",
            "megatron-bridge": "bridge.yaml"}  # fmt: skip
"""Software for which a launch is written, and read again damaged."""
TABLES = {
    "gemm.csv": """\
hardware,dtype,m,n,k,time_us
H100_SXM,bf16,4096,4096,4096,230
A100_SXM,bf16,16,8192,8192,60
""",
    "attention.csv": """\
hardware,phase,batch,heads,heads_kv,d_qk,d_v,q_len,kv_len,dtype,time_us
H100_SXM,fwd,1,32,8,128,128,4096,4096,bf16,300
""",
    "sparse.csv": """\
hardware,model,heads,seq,mbs,compress_ratio,pass,backend,ms
MI355X,deepseek-v4-flash,64,4096,1,4,fwd,triton,1.5
MI355X,deepseek-v4-flash,64,4096,1,4,fwd,gluon,0.9
MI355X,deepseek-v4-flash,64,4096,1,0,bwd,gluon,1.2
""",
    "stream.csv": """\
hardware,framework,op,phase,rows,cols,dtype,time_us
H100_SXM,sglang,rms_norm,fwd,4096,8192,bf16,50
A100_SXM,sglang,gelu,fwd,16384,8192,bf16,330
nobody's card,sglang,gelu,fwd,16384,8192,bf16,330
""",
    "moe.csv": """\
hardware,stage,dtype,groups,m_per_group,n,k,time_us
H100_SXM,fwd,bf16,8,512,4096,7168,500
""",
    "exchange.csv": """\
hardware,mode,phase,nodes,ep,tokens_per_rank,hidden,topk,experts,sms,time_us
H100_SXM,normal,dispatch,2,16,4096,7168,8,256,24,500
""",
    "collective.csv": """\
hardware,op,impl,n_gpus,nodes,bytes,dtype,time_us
H100_SXM,all_reduce,nccl,8,1,1048576,bf16,60
""",
    "training.csv": """\
hardware,n_gpus,layers,hidden,heads,vocab,ffn,tp,pp,gbs,mbs,seq,dtype,meas_iter_s
H100_SXM,8,4,1024,8,32000,4096,2,1,16,1,2048,bf16,0.5
""",
    "wafer.csv": """\
kind,system,units,core_grid,clock_GHz,model,batch,isl,osl,metric,value,unit
prefill,Cerebras WSE-2,1,480x480,1.1,llama-3-8b,1,4096,,,20000,tok/s
decode,Cerebras WSE-2,1,420x420,1.1,llama-3-8b,1,4096,,,2700,tok/s
"decode, mapping of T10",Cerebras WSE-2,1,420x420,1.1,llama-3-8b,1,4096,,,400,tok/s
decode,Tenstorrent n150 (1 Wormhole),1,,,falcon-7b,32,128,,,18,tok/s/user
""",
}


def files(folder: Path) -> None:
    """Write every file that the command lines read into a folder."""
    texts = {
        "model.json": json.dumps(MODEL, indent=1),
        "experts.json": json.dumps(EXPERTS, indent=1),
        "profile.toml": PROFILE,
        "config.toml": CONFIG,
        "ring.yml": RING,
        "system.json": json.dumps(SYSTEM, indent=1),
        "wafer.json": fuzz_formats.EXAMPLES["wafer-system"],
        "native.json": json.dumps(NATIVE_RING),
        "native.txt": NATIVE_SYSTEM,
        "aicb.txt": AICB,
        "all_reduce_perf.log": NCCL,
        "data.txt": DATA_PARALLEL,
        "routing.json": "[[4, 3, 2, 1, 4, 3, 2, 1], [1, 1, 1, 1, 2, 2, 2, 2]]",
        "routing.csv": "expert,count,layer\n" + "".join(f"{i},{i + 1},0\n" for i in range(8)),
        **TABLES,
        **{name: json.dumps(asked) for name, asked in ui_questions.EXAMPLES.items()},
        **{
            f"{name}.toml": (PAGES / f"{name}.toml").read_text(encoding="utf-8") for name in READ_AS
        },
        "page.toml": PAGE,
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for kind in fuzz_formats.WORKLOADS:
        suffix = fuzz_formats.READERS[kind][2]
        for number, content in enumerate(fuzz_formats.examples(kind)[:1]):
            (folder / f"{kind}{number or ''}{suffix}").write_bytes(content)
    for rank in range(2):
        (folder / f"chakra.{rank}.et").write_bytes(fuzz_formats.chakra_example())


MADE = (
    "sweep --model model.json --hardware dgx-h100 --hardware b200 --devices 8 --seq-len 1024 "
    "--global-batch 8 --tp 1,2 --pp 1 --cp 1 --micro-batch 1 --zero 1 -o sweep.nc",
    "workload synthetic chained --devices 4 --count 2 --size 1MiB -o chain",
    "launch --model llama-3.1-8b --hardware dgx-h100 --devices 8 --seq-len 4096 --global-batch 64 "
    "--tp 2 --for megatron -o launch.sh",
    "serve --model model.json --hardware dgx-h100 --tp 1,2 --concurrency 1,8 -o serve.nc",
    "launch serve.nc --for sglang -o server.sh",
    "wafer --model model.json --hardware wse-2 --grid 40,50 --context 64,128 -o wafer.nc",
    "workload cores . --model model.json --node-grid 1x2 --tp 2 --tp-ffn 2 --core-grid 2x2 "
    "--isl 8 --layers decode0 --form columns",
    "sweep --model model.json --hardware dgx-h100 --devices 8,16 --seq-len 1024 --global-batch 16 "
    "--tp 1 --pp 1 --cp 1 --micro-batch 1 --zero 1 -o scaling.nc",
    "sensitivity sweep.nc#1 --kind software -o sensitivity.nc",
    "compare gemm gemm.csv --output rows.csv",
    "sweep --model model.json --hardware dgx-h100,b200 --devices 8 --seq-len 1024 "
    "--global-batch 8 --tp 1,2 --pp 1 --cp 1 --micro-batch 1 --zero 1,3 -o sweep.zarr",
    "serve --model model.json --hardware dgx-h100 --tp 1,2 --concurrency 1,8 -o serve.zarr",
    "kernel gemm --hardware dgx-h100 --m 1,64 --n 64 --k 64 -o kernel.nc",
    "simulate chain --hardware dgx-h100 -o simulation.nc",
    *(f"launch --model llama-3.1-8b --hardware dgx-h100 --devices 8 --seq-len 4096 --global-batch "
      f"64 --tp 2 --for {name} -o run.{ending}"
      for name, ending in LAUNCHED.items()),
)  # fmt: skip
"""Command lines that make files to damage: a stored sweep, traces of four ranks, a launch."""
PRINTED = {
    "run.json": "project --model llama-3.1-8b --hardware dgx-h100 --devices 8 --seq-len 4096 "
    "--global-batch 64 --tp 2 --json",
}
"""Files that hold what a command line prints."""

MADE_TO_FLIP = (
    *(f"sweep --model model.json --hardware dgx-h100,b200 --devices 8 --seq-len 1024 "
      f"--global-batch 8 --tp 1,2 --pp 1 --cp 1 --micro-batch 1 --zero 1,3 -o sweep.{kind}"
      for kind in ("csv", "json", "parquet", "md")),
    "sensitivity sweep.nc#1 --kind software -o sensitivity.json",
)  # fmt: skip
"""Results in forms that few commands read."""
_READ_AS = ("sweep.nc", "sweep.zarr", "serve.nc", "serve.zarr", "wafer.nc", "scaling.nc",
            "sensitivity.nc", "kernel.nc", "simulation.nc", "sweep.csv", "sweep.json",
            "sweep.parquet", "sweep.md", "run.json", "rows.csv", "sensitivity.json")  # fmt: skip
READING = (
    *(f"best {name}" for name in _READ_AS),
    *(f"report {name} -o p.html" for name in _READ_AS),
    *(f"best {name} --{more}" for name in _READ_AS[:5]
      for more in ("json --top 3", "by memory_total --all")),
    *(f"best {name} --pareto step_time,memory_total" for name in ("sweep.nc", "sweep.zarr")),
    *(f"best {name} --where 'tp == 2' --price 2 --tokens 1e12" for name in _READ_AS[:2]),
    *(f"diff {name}#1 sweep.nc#2" for name in (*_READ_AS[:2], *_READ_AS[9:14])),
    *(f"diff sweep.nc {name}" for name in ("sweep.zarr", "sweep.json", "run.json")),
    *(f"plot {kind} {name} -o f.svg" for name in ("sweep.nc", "sweep.zarr", "sweep.json")
      for kind in ("breakdown", "memory", "pareto", "pipeline", "roofline")),
    *(f"plot pareto {name} -o f.svg" for name in _READ_AS[:9]),
    *(f"plot heatmap {name} --x tp --y zero -o f.svg" for name in _READ_AS[:2]),
    *(f"plot {kind} {name} -o f.svg" for kind, name in (
        ("scaling", "scaling.nc"), ("sensitivity", "sensitivity.nc"), ("accuracy", "rows.csv"),
        ("sensitivity", "sensitivity.json"), ("wafer", "wafer.nc"), ("roofline", "kernel.nc"),
        ("roofline", "simulation.nc"), ("accuracy", "sweep.csv"))),
    *(f"timeline {name}#1 -o f.json" for name in _READ_AS[:6]),
    *(f"sensitivity {name}#1 --kind software" for name in _READ_AS[:4]),
    *(f"launch {name} --for {engine}" for name, engine in (
        ("sweep.nc", "megatron"), ("sweep.zarr", "megatron"), ("serve.nc", "vllm"),
        ("serve.zarr", "sglang"), ("sweep.json", "megatron"))),
)  # fmt: skip
"""Command lines that read results, of which one bit is turned."""

PROBLEM = "--model model.json --hardware dgx-h100 --devices 8 --seq-len 1024 --global-batch 8"
SWEPT = "--tp 1,2 --pp 1 --cp 1 --micro-batch 1 --zero 1"
SERVED = "--model model.json --hardware dgx-h100 --isl 512 --osl 64"
AICB_OPTIONS = (
    "--num_layers=2 --hidden_size=256 --num_attention_heads=4 --seq_length=128 "
    "--vocab_size=1000 --world_size=8 --global_batch=16"
)
NODES = "--model model.json --isl 16 --batch 4 --osl 2 --layers decode0,lm_head --compat wse"
STAGE = (
    "--dp 2 --tp 2 --sp 1 --pp 2 --num-stacks 2 --dmodel 64 --dff 128 --head 4 --seq 32 "
    "--batch 4 --din 32 --dout 32"
)
MESH = "--dimension mesh:2x2:200e9:1e-6 --dimension switch:2:50e9:2e-6"

# How often a command is tried, and its good command lines.
COMMANDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "sweep": (
        4,
        (
            f"sweep {PROBLEM} {SWEPT}",
            f"sweep {PROBLEM} {SWEPT} --sweep device.memory.bandwidth=3e12:5e12:2 -o out.nc",
            f"sweep --config config.toml {SWEPT} --json",
            f"sweep --model experts.json --hardware profile.toml --devices 8 --seq-len 1024 "
            f"--global-batch 8 {SWEPT} --ep 1,2 --precision bf16,fp8 --keep-impossible",
        ),
    ),
    "search": (
        4,
        (
            f"search {PROBLEM} {SWEPT} --top 2 --by step_time",
            f"search {PROBLEM} {SWEPT} --sweep device.memory.bandwidth=3e12:5e12:2 -o out.nc",
            f"search --config config.toml {SWEPT} --mapping all --seconds 5 --json",
            f"search --model experts.json --hardware profile.toml,b200 --devices 8 --seq-len 1024 "
            f"--global-batch 8 {SWEPT} --ep 1,2 --precision bf16,fp8 --safe",
        ),
    ),
    "diff": (
        4,
        (
            f"diff tp=1 'tp=2 zero=3' {PROBLEM}",
            f"diff - device.memory.bandwidth=4.8e12 {PROBLEM} --tp 2 --json",
            "diff sweep.nc#1 sweep.nc#2",
            "diff sweep.nc run.json",
        ),
    ),
    "launch": (
        3,
        (
            "launch sweep.nc --pick 2 --for megatron --where 'hardware == \"dgx-h100\"'",
            f"launch {PROBLEM} --tp 2 --for megatron -o out.sh",
            "launch --from launch.sh --for megatron",
            *(f"launch --from run.{ending} --for megatron" for ending in LAUNCHED.values()),
            "launch serve.nc --for vllm --pick 2 --where 'tp == 2' -o out.sh",
        ),
    ),
    "best": (
        4,
        (
            "best sweep.nc --top 3 --where 'tensor_parallel <= 8 and pp == 1'",
            "best sweep.nc --pareto step_time,memory_total --json",
            "best sweep.nc --by cost_per_token --tokens 1e12 --price dgx-h100=2.5,b200=4",
            "best sweep.nc --by memory_total --all --where 'pp == 1'",
            "best wafer.nc --by sram_used --where 'grid_rows > 40' --json",
            "best serve.nc --by tpot --where 'ttft_p95 < 2 and tp in (1, 2)'",
        ),
    ),
    "serve": (
        8,
        (
            f"serve {SERVED} --tp 1 --concurrency 8 --json",
            f"serve {SERVED} --from server.sh --concurrency 8",
            f"serve {SERVED} --engine vllm,sglang-0.5 --concurrency 1:64:x4 --chunk 0,512 -o x.nc",
            f"serve {SERVED} --tp 2 --rate 2.5 --length-range 0.8 --prefix 0.25 --explain",
            f"serve {SERVED} --tp 1 --phase decode --batch 1,8 --kv-precision fp8",
            f"serve {SERVED} --rate 4 --disaggregate --prefill tp=1,workers=1:2:2 --decode tp=2",
            "serve --model experts.json --hardware profile.toml --tp 2 --ep 2 --dp-attention 1,2 "
            "--precision fp8,int4:bf16 --concurrency 4 --price 2 --set software.pass_host=1e-3",
        ),
    ),
    "wafer project": (
        4,
        (
            "wafer --model model.json --hardware wse-2 --grid 40x30,50 --phase decode,prefill "
            "--context 512 --batch 1,4 --json",
            "wafer --model experts.json --hardware wse-2,wse-3 --sweep grid=30:60:4 --regions 2 "
            "--collective chain --cache-layout row --context 64 -o x.nc",
            "wafer --model model.json --hardware wse-2 --map search --grid 20,40 --context 64 "
            "--regions 3 --collective chain,two_level",
            "wafer project --model model.json --hardware wse-2 --grid 40 --explain --no-head "
            "--product summa --set constants.stage_latency=30",
            "wafer --model model.json --hardware wse-2 --isl 256 --osl 64 --prefill-grid 60 "
            "--decode-grid 40",
            "wafer --model model.json --hardware n300 --context 128 --batch 8 --precision bfp4",
        ),
    ),
    "size": (
        4,
        (
            f"size {SERVED} --rate 50 --ttft-p95 2 --tpot-p95 0.03",
            f"size {SERVED} --rate 500 --limit itl_p99=0.1 --pools both --tp 1,2 --json",
        ),
    ),
    "project": (
        8,
        (
            f"project {PROBLEM} --tp 2 --json",
            f"project {PROBLEM} --tokens 1e12 --price 2.5 --goodput",
            f"project {PROBLEM} --set device.memory.bandwidth=4e12 --framework fsdp",
            "project --model experts.json --hardware profile.toml --devices 8 --seq-len 1024 "
            "--global-batch 8 --ep 2 --precision fp8",
            "project --from launch.sh --hardware dgx-h100",
            *(f"project --from run.{ending} --hardware dgx-h100" for ending in LAUNCHED.values()),
            f"project {PROBLEM} --as page.toml".replace("model.json", "experts.json"),
            "project --config config.toml --pp 2 --mapping tensor-data-context-pipeline",
        ),
    ),
    "explain": (
        6,
        (f"explain {PROBLEM} --tp 2 --top 3", f"explain {PROBLEM} --json --phase forward"),
    ),
    "kernel gemm": (
        8,
        (
            "kernel gemm --hardware dgx-h100 --m 1,4096 --n 4096 --k 1024:8192:2 --precision bf16",
            "kernel gemm --hardware profile.toml --m 64 --n 64 --k 64 --groups 8 --launches one "
            "--json -o out.nc",
            "kernel gemm --hardware b200 --m 64 --n 64 --k 64 --precision fp8_block --quantise",
        ),
    ),
    "kernel attention": (
        6,
        (
            "kernel attention --hardware dgx-h100 --heads 8 --kv-heads 2 --q-len 1024",
            "kernel attention --hardware dgx-h100 --heads 8 --kv-heads 2 --phase decode --batch 4 "
            "--kv-len 8192 --json",
            "kernel attention --hardware b200 --heads 16 --head-dim 192 --head-dim-v 128 --q-len "
            "512 --window 128 --phase backward",
        ),
    ),
    "kernel sparse-attention": (
        6,
        (
            "kernel sparse-attention --hardware dgx-h100 --heads 128 --head-dim 576 --head-dim-v "
            "512 --selected 2048 --q-len 4096 --kv-len 65536 --phase forward,backward",
            "kernel sparse-attention --hardware mi355x --heads 64 --window 128 --selected 512 "
            "--compression 4 --phase decode --batch 1,64 --kv-len 65536 --json",
            "kernel sparse-attention --hardware b200 --heads 64 --kv-heads 4 --head-dim 128 "
            "--own-values --selected 2048 --block 128 --q-len 32768 -o out.nc",
        ),
    ),
    "kernel indexer": (
        5,
        (
            "kernel indexer --hardware dgx-h100 --heads 64 --top-k 2048 --q-len 4096 --phase "
            "forward,backward",
            "kernel indexer --hardware b200 --heads 4 --top-k 2048 --block 128 --phase decode "
            "--batch 1,64 --kv-len 8192,131072 --json",
        ),
    ),
    "kernel scan": (
        6,
        (
            "kernel scan --hardware dgx-h100 --heads 32 --key-heads 16 --seq-len 4096,65536 "
            "--phase forward,backward",
            "kernel scan --hardware b200 --kind mamba2,lightning --heads 128 --key-heads 8 "
            "--value-dim 64 --chunk 128 --batch 4 --phase prefill --json",
            "kernel scan --hardware mi300x --kind kimi_delta,mamba1 --heads 64 --key-dim 16 "
            "--phase decode --batch 1,64 -o out.nc",
        ),
    ),
    "kernel convolution": (
        4,
        (
            "kernel convolution --hardware dgx-h100 --channels 8192 --tokens 1:65536:x4",
            "kernel convolution --hardware b200 --channels 2048 --kernel-size 3,7 --no-activation "
            "--phase forward,backward,decode --json",
        ),
    ),
    "kernel stream": (
        8,
        (
            "kernel stream rms_norm,gated --hardware dgx-h100 --rows 1:4096:x64 --columns 8192",
            "kernel stream --hardware dgx-h100 --bytes-read 1000:1000000:x10 --json",
        ),
    ),
    "kernel moe": (
        6,
        (
            "kernel moe --hardware dgx-h100 --tokens 64 --hidden 256 --intermediate 512 --experts "
            "8 --top-k 2 --routing balanced,uniform,power_law_1.2 --seed 3",
            "kernel moe --hardware dgx-h100 --tokens 64 --hidden 256 --intermediate 512 --experts "
            "8 --top-k 2 --routing empirical:routing.json --ep 2 --json",
            "kernel moe --hardware dgx-h100 --tokens 64 --hidden 256 --intermediate 512 --experts "
            "8 --top-k 2 --routing empirical:routing.csv",
        ),
    ),
    "collective": (
        8,
        (
            "collective all_reduce,all_gather --hardware dgx-h100 --size 1KiB:1GiB:x1024 "
            "--members 8",
            "collective all_gather --hardware h100-pcie --size 64MiB --members 4 "
            "--members-per-node 1,2 --json",
            "collective all_reduce --size 1MiB --astra-network ring.yml --astra-system system.json",
        ),
    ),
    "topology show": (
        6,
        (
            f"topology show {MESH} --operation all_to_all --size 16MB",
            "topology show --hardware dgx-h100 --devices 16 --json",
            "topology show --network ring.yml --operation all_reduce --algorithm ring --size 1MB "
            "--members 0,1,2,3",
        ),
    ),
    "topology export": (
        4,
        (
            "topology export --hardware dgx-h100 --devices 16 --rails -o astra",
            "topology export --dimension ring:4:50e9:1e-6 -o astra",
        ),
    ),
    "workload aicb": (
        6,
        (
            f"workload aicb {AICB_OPTIONS} -o -",
            f"workload aicb {PROBLEM} --tp 2 -o out.txt",
            f"workload aicb --frame=DeepSpeed --stage=3 {AICB_OPTIONS} -o -",
        ),
    ),
    "workload aiob": (4, (f"workload aiob --hardware dgx-h100 {AICB_OPTIONS} -o -",)),
    "workload astra-text": (4, (f"workload astra-text {PROBLEM} --tp 2 -o out.txt",)),
    "workload chakra": (
        5,
        (
            f"workload chakra {PROBLEM} --tp 2 -o out",
            f"workload chakra {PROBLEM} --tp 2 --for astra-sim -o out",
        ),
    ),
    "workload cores": (
        3,
        (
            "workload cores out --model model.json --node-grid 1x2 --tp 2 --tp-ffn 2 "
            "--core-grid 2x3 --batch 3 --isl 40 --layers decode1,lm_head",
            "workload cores out --model experts.json --node-grid 1x2 --dp-attention 2 --ep 2 "
            "--core-grid 2x2 --isl 20 --phase prefill --routing two_level --layers prefill0 --json",
        ),
    ),
    "workload stage": (
        5,
        (
            f"workload stage {STAGE} -o out",
            f"workload stage {STAGE} --for astra-sim@af2492b --hardware dgx-h100 -o out",
        ),
    ),
    "workload nodes": (
        4,
        (
            f"workload nodes {NODES} --tp 2 --sp 2 -o out",
            f"workload nodes {NODES} --system wafer.json -o out",
            "workload nodes --model experts.json --node-grid 1x2 --dp-attention 2 --ep 2 --isl 8 "
            "--batch 4 --osl 2 --routing two_level --save-routing experts.npz -o out",
        ),
    ),
    "workload synthetic": (
        4,
        (
            "workload synthetic chained --devices 4 --count 2 --size 1MiB -o out",
            "workload synthetic pipeline --devices 4 --count 3 --num-ops 100 --size 1KiB -o out",
            "workload synthetic chained --devices 4 --for astra-sim --hardware dgx-h100 -o out",
        ),
    ),
    "workload convert": (
        6,
        (
            "workload convert data.txt --devices 4 -o out",
            "workload convert flexflow.graph --npu-frequency 1000 -o out",
            "workload convert kineto.json --devices 2 -o out",
            "workload convert pytorch-host.json --kineto kineto.json --json-traces -o out",
        ),
    ),
    "workload show": (
        8,
        (
            "workload show chain",
            "workload show chakra --json",
            "workload show chakra-json.0.json",
            "workload show data.txt --devices 4 --json",
            "workload show aicb-text.txt",
            "workload show aicb-csv.csv --json",
            "workload show vidur-csv.csv",
            "workload show aiob.txt",
            "workload show flexflow.graph",
            "workload show pytorch-host.json",
            "workload show kineto.json",
        ),
    ),
    "simulate": (
        6,
        (
            "simulate chain --network ring.yml --system system.json",
            "simulate chain --hardware dgx-h100 --json --by rank",
            "simulate chain --hardware dgx-h100 --contention -o out.nc",
            "simulate data.txt --network native.json --system native.txt",
            "simulate aicb.txt --gpu-type H100 --nic-type CX7 --json",
            "simulate chain --hardware profile.toml --timeline out.json",
        ),
    ),
    "wafer experts": (
        3,
        (
            "wafer experts --model experts.json --hardware wse-2 --node-grid 1x2 --dp-attention 2 "
            "--ep 2 --batch 8 --isl 16 --routing two_level",
            "wafer experts --model experts.json --hardware wse-3 --system wafer.json --batch 8 "
            "--exchange tree --placement balanced --by-layer --json",
        ),
    ),
    "plot wafer": (
        2,
        (
            "plot wafer cores.nc --layer decode0 --operation wo -o cores.png",
            "plot wafer cores.nc --step decode0 --json -o cores.svg",
        ),
    ),
    "plot accuracy": (1, ("plot accuracy rows.csv --json -o figure.svg",)),
    "plot breakdown": (2, ("plot breakdown sweep.nc --top 3 --data bars.csv -o figure.svg",)),
    "plot heatmap": (2, ("plot heatmap sweep.nc --x tp --y zero --json -o figure.svg",)),
    "plot memory": (2, ("plot memory sweep.nc --top 2 --width 4 -o figure.svg",)),
    "plot pareto": (2, ("plot pareto sweep.nc --where 'tp == 1' --json -o figure.svg",)),
    "plot pipeline": (2, ("plot pipeline sweep.nc --pick 1 --json -o figure.svg",)),
    "plot roofline": (2, ("plot roofline sweep.nc --pick 1 --json -o figure.svg",)),
    "plot scaling": (2, ("plot scaling scaling.nc --title Scaling -o figure.svg",)),
    "plot sensitivity": (1, ("plot sensitivity sensitivity.nc --top 4 -o figure.svg",)),
    "report": (
        3,
        (
            "report sweep.nc scaling.nc --top 5 -o page.html",
            "report serve.nc --where 'tp == 1' --title Served --json -o page.html",
        ),
    ),
    "timeline": (
        3,
        (
            "timeline sweep.nc#1 --operations layers --json -o step.json",
            "timeline serve.nc#1 --passes 4 -o passes.json",
        ),
    ),
    "sensitivity": (
        3,
        (
            "sensitivity sweep.nc#1 --kind software --top 5",
            "sensitivity sweep.nc#1 sweep.nc#2 --parameter device.memory.bandwidth --json",
        ),
    ),
    "samples": (1, ("samples", "samples copies")),
    "doctor": (1, ("doctor --json",)),
    "wafer place": (
        2,
        (
            "wafer place --model experts.json --system wafer.json --batch 8",
            "wafer place --model model.json --tp 2 --sp 2 --node-grid 2x2 --phase prefill --json",
        ),
    ),
    "wafer collective": (
        3,
        (
            "wafer collective all_reduce --hardware wse-2 --grid 1x420 --size 64,1KiB",
            "wafer collective reduce --hardware wse-2 --grid 5x4 --size 32 --simulate --json",
        ),
    ),
    "hardware list": (1, ("hardware list --all", "hardware list --json")),
    "hardware show": (
        6,
        (
            "hardware show dgx-h100 --set device.tdp=600",
            "hardware show profile.toml --json",
            "hardware show tpu-v5p",
            "hardware show wse-2 --set constants.stage_latency=3",
        ),
    ),
    "software list": (1, ("software list", "software list --json")),
    "software show": (3, ("software show megatron-deepep", "software show fsdp --json")),
    "model list": (1, ("model list", "model list --json")),
    "model show": (
        6,
        (
            *("model show gpt2", "model show model.json --seq-len 2048"),
            *("model show experts.json", "model show experts.json --as page.toml --json"),
            *(f"model show {model} --as {page}.toml" for page, model in READ_AS.items()),
        ),
    ),
    "ui": (
        4,
        (
            *(f"ui /api/results {name}" for name in ui_questions.EXAMPLES),
            *(f"ui /download/launch?row=0&for=megatron {name}" for name in ui_questions.EXAMPLES),
            "ui /download/results.nc training.question",
            "ui /download/report.html serving.question",
        ),
    ),
    "compare": (
        6,
        (
            "compare gemm gemm.csv --by hardware,dtype",
            "compare attention attention.csv --json",
            "compare sparse-attention sparse.csv --by fastest,pass",
            "compare stream stream.csv --where 'rows > 16' --output out.csv",
            "compare moe moe.csv",
            "compare moe-alltoall exchange.csv",
            "compare collective collective.csv --max-error 90%",
            "compare collective all_reduce_perf.log --hardware dgx-h100",
            "compare training training.csv --hardware dgx-h100",
            "compare wafer wafer.csv --by run,model --json",
            "compare wafer wafer.csv --hardware wse-3",
        ),
    ),
    "calibrate": (
        3,
        (
            "calibrate dgx-h100 gemm.csv --only launch_latency --json",
            "calibrate dgx-h100 all_reduce_perf.log --kind collective --all-rows -o out.toml",
        ),
    ),
    "completion": (1, ("completion bash",)),
}
