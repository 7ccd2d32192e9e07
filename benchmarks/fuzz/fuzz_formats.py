"""Feed mutated files to the readers of workload files; only a PerfModelError may come out.

Coverage-guided by Atheris, Google's fuzzer for Python, which is no dependency of this
project: ``pip install atheris``. ::

    python benchmarks/fuzz/fuzz_formats.py chakra -runs=100000
    python benchmarks/fuzz/fuzz_formats.py all -runs=20000
    python benchmarks/fuzz/fuzz_formats.py chakra --seeds FOLDER -max_total_time=60
    python benchmarks/fuzz/fuzz_formats.py chakra /tmp/perfmodel-fuzz-…/chakra-crash-0123…

The first argument is a kind of `KINDS`, or `all`, one after another. Arguments that begin with
one hyphen are libFuzzer's; without ``-runs`` or ``-max_total_time`` it stops after 10,000
inputs. ``--seeds`` names a folder of example files to begin from, besides the small ones below.
The name of a file runs that input alone.

An input counts as handled when the reader returns, or raises a `PerfModelError` of one line
that can be printed and is not longer than `LONGEST_MESSAGE`. Anything else is a crash, and so
are 10 s or 2 GiB for one input (at most 4 KiB, unless ``-max_len`` says otherwise): the input
is left in a new folder for temporary files, whose name is printed (``-artifact_prefix`` names
another), and the exit status is 1.

Most kinds are one file for one reader. ``open`` tells a file's kind from its content, converts
it to execution traces and adds up what they hold. ``simulate`` reads a set of Chakra traces and
runs it on two devices; its inputs are the files of both ranks and of the groups with `BETWEEN`
between them (one file: both ranks alike; no second mark: no groups).
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

RUNS = 10_000
LONGEST_MESSAGE = 1200  # characters
WITHIN = "--within"  # for the process that does it
WORD = re.compile(rb"[A-Za-z_]{3,24}")
LIMITS = ("-timeout=10", "-rss_limit_mb=2048", "-max_len=4096", "-print_final_stats=0")
BETWEEN = b"\n-- next file --\n"

# Kind: module below perfmodel, function that takes a path, ending of the file.
READERS = {
    "chakra": ("workloads.formats.chakra.files", "read_trace", ".0.et"),
    "chakra-json": ("workloads.formats.chakra.files", "read_trace", ".0.json"),
    "communicator-groups": ("workloads.formats.chakra.json", "read_groups", ".json"),
    "astra-text": ("workloads.formats.astra_text", "read_astra_text", ".txt"),
    "astra-network": ("workloads.formats.astra_text_machine", "read_native_network", ".json"),
    "astra-system": ("workloads.formats.astra_text_machine", "read_native_system", ".txt"),
    "aicb-text": ("workloads.formats.aicb_text", "read_aicb_text", ".txt"),
    "aicb-csv": ("workloads.formats.aicb_tables", "read_aicb_csv", ".csv"),
    "vidur-csv": ("workloads.formats.aicb_tables", "read_vidur_csv", ".csv"),
    "aiob": ("workloads.formats.aiob", "read_aiob", ".txt"),
    "flexflow": ("workloads.formats.flexflow", "read_flexflow", ".graph"),
    "requests-csv": ("serving.requests", "read_requests", ".csv"),
    "requests-json": ("serving.requests", "read_requests", ".jsonl"),
    "schedule-csv": ("strategy.pipelines", "read_schedule", ".csv"),
    "schedule-json": ("strategy.pipelines", "read_schedule", ".json"),
    "pytorch-host": ("workloads.formats.pytorch_host", "read_host_trace", ".json"),
    "kineto": ("workloads.formats.pytorch_kineto", "read_kineto", ".json"),
    "wafer-graph": ("wafer.generator_files", "read_node_graph", ".csv"),
    "wafer-nodes": ("wafer.generator_files", "read_node_table", ".csv"),
    "wafer-system": ("wafer.generator_files", "read_systems", ".json"),
    "wafer-tiling": ("wafer.generator_files", "read_tiling", ".json"),
    "launch-megatron": ("launch.software", "read_launch", ".sh"),
    "launch-megatron-bridge": ("launch.software", "read_launch", ".yaml"),
    "launch-torchtitan": ("launch.software", "read_launch", ".toml"),
    "launch-maxtext": ("launch.software", "read_launch", ".yml"),
    "launch-deepspeed": ("launch.software", "read_launch", ".sh"),
    "launch-primus": ("launch.software", "read_launch", ".yaml"),
    "launch-trainer": ("launch.software", "read_launch", ".sh"),
    "launch-nemo": ("launch.software", "read_launch", ".yaml"),
    "launch-mlperf": ("launch.software", "read_launch", ".sh"),
    "launch-nanotron": ("launch.software", "read_launch", ".yaml"),
    "launch-vllm": ("launch.served", "read_served", ".sh"),
    "launch-sglang": ("launch.served", "read_served", ".sh"),
    "launch-tensorrt-llm": ("launch.served", "read_served", ".sh"),
}
# Of them, what `open` reads or at least knows by sight.
WORKLOADS = ("chakra-json", "astra-text", "aicb-text", "aicb-csv", "vidur-csv", "aiob", "flexflow",
             "pytorch-host", "kineto")  # fmt: skip
OPEN, SIMULATE = "open", "simulate"
KINDS = (*READERS, OPEN, SIMULATE)
DEVICES = 2

# One small good file per kind; Chakra's is made below.
EXAMPLES = {
    "chakra-json": """{"version": "0.0.4", "workload_graph": [
{"Id": 0, "Name": "a", "NodeType": 4, "ctrlDeps": [], "data_deps": [], "runtime": 2.5,
 "is_cpu_op": false, "num_ops": 5, "inputs": ["x", "8"], "y": {"kind": "bytes", "value": "AA=="}},
{"Id": 1, "Name": "b", "NodeType": 7, "data_deps": [0], "comm_type": 0, "comm_size": 64,
 "pg_name": "1", "involve_dims": [true, false], "duration_seconds": 1e-7, "runtime": 1}]}
""",
    "communicator-groups": '{"1": [0, 1], "a0": [4, 5]}',
    "astra-text": """HYBRID_TRANSFORMER_FWD_IN_BCKWD mp: 4 ckpts: 1 0 initiates: 1 1
2
conv1 -1 5 ALLREDUCE 64 5 NONE 0 5  ALLGATHER 1048576 5
fc -1 5 NONE 0 5 ALLTOALL 8 5  REDUCESCATTER 1048576 5
""",
    "astra-network": """{"topology-name": "Hierarchical", "topologies-per-dim": ["Ring", "Switch"],
"dimension-type": ["N", "P"], "dimensions-count": 2, "units-count": [2, 4],
"links-count": [2, 1], "link-latency": [50, 500], "link-bandwidth": [50, 12.5],
"nic-latency": [0, 0], "router-latency": [0, 0], "hbm-latency": [500, 500],
"hbm-bandwidth": [370, 13], "hbm-scale": [0, 0]}
""",
    "astra-system": """scheduling-policy: LIFO
endpoint-delay: 10
active-chunks-per-dimension: 1
preferred-dataset-splits: 4
all-reduce-implementation: ring_halvingDoubling
all-gather-implementation: ring_direct
reduce-scatter-implementation: ring_direct
all-to-all-implementation: ring_direct
collective-optimization: localBWAware
intra-dimension-scheduling: FIFO
inter-dimension-scheduling: baseline
""",
    "aicb-text": """HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 \
vpp: 36 ga: 8 all_gpus: 512 checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0
2
grad_gather\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tALLGATHER\t1823473664\t100
attention_layer\t-1\t1820000\tALLREDUCE\t8\t1820000\tNONE\t0\t1820000\tNONE\t0\t100
""",
    "aicb-csv": """comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,\
_elapsed_time,algbw,busbw,count
CommType.broadcast,CommGroup.dp_group,128,524288000,init,None,0,,None,None,None,1
CommType.isend,CommGroup.pp_group,1,16777216,forward_step,None,None,send_next,0.25,67.1,58.7,1
CommType.computation,None,None,((2048 1 1024) (1024 4096)),fwd,None,None,,None,None,None,1
""",
    "vidur-csv": """layer_id\tlayer_name\tcomp_time\tcomm_size
0\tattention\t1\t0
3\tmoe\t2\t5562368
""",
    "wafer-graph": """uid;Op Type;Inputs;Outputs;Attributes
x_slice0:8;Slice;['0:x'];['0:x_slice0:8'];
a2a;AllToAllv;['0:x_slice0:8', '0:empty_1'];['0:a2a_0', '1:a2a_0'];
""",
    "wafer-nodes": """uid;operation;memory_footprint (B);num_ops (MAC);hbm_reads (B);\
network_data (B);comm. group;Dimensions
wkva;Linear;8257536;33030144;8257536;0;N/A;[8, 7168] x [7168, 576] -> [8, 576]
ar;AllReduce;0;0;0;524288;[0, 2];[8, 1, 32768]
uc;Unicast;0;0;0;28672;3;[2, 1, 7168]
""",
    "wafer-system": """{"decode": {"num_nodes": 4, "node_grid": [2, 2], "core_grid": [4, 4],
"dp_attn": 1, "tp_attn": 2, "sp": 2, "pp": 1, "dp_ffn": 1, "tp_ffn": 1, "ep": 4,
"n_redundant_shared_exp": 1, "expert_workload_model": "uniform", "moe_comm": "alltoall"}}
""",
    "wafer-tiling": """{"layers": {"decode*_wo": [16, 1024, 128]},
"defaults": {"Linear": [16, 1024, 64], "MLAKV": [1, 512, null]}}
""",
    "aiob": """train_iter:10
Emb:
    time_gpu_max: 857
    time_gpu_min: 782
    time_gpu_avg: 799.5
""",
    "flexflow": """digraph taskgraph {
  node0 [color=red,label="{device_id=0|Conv2D_100|Forward|COMP_NODE|simulated_run_time=0.28}"];
  node7 [label="{device_id=1|A to B|Comm|COMM_SEND_RECV_NODE|src_device_id=0|dst_device_id=1|\
comm_size=131072|run_time=0.000122071}",shape=record];
  node0 -> node7;
}
""",
    "schedule-csv": """0F0,1F0,,0F1,1B0,0SEND_F1,(1F1;0B0)OVERLAP_F_B,1B1,0I1,0W1
2RECV_F0,2F0,2B0,2F1,2B1
""",
    "schedule-json": """{"stage_to_rank": [0, 0], "order":
[["0F0", "1F0", "0F1", "1B0", ["1F1", "0B0"], "1B1", "0I1", "0W1"]]}
""",
    "requests-csv": """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
""",
    "requests-json": """\
{"timestamp": 0, "input_length": 1325, "output_length": 52, "hash_ids": [46, 47, 48]}
{"timestamp": 3052, "input_length": 1100, "output_length": 26, "hash_ids": [46, 47, 57]}
""",
    "pytorch-host": """{"schema": "1.0.2-chakra.0.0.4", "pid": 1, "nodes": [
{"id": 2, "name": "[pytorch|profiler|execution_trace|thread]", "ctrl_deps": 1,
 "inputs": {"values": [], "shapes": [], "types": []},
 "outputs": {"values": [], "shapes": [], "types": []},
 "attrs": [{"name": "rf_id", "type": "uint64", "value": 0}]},
{"id": 3, "name": "## process_group:init ##", "ctrl_deps": 2,
 "inputs": {"values": ["[{\\"pg_name\\": \\"0\\", \\"ranks\\": [], \\"group_size\\": 2}]"],
            "shapes": [[]], "types": ["String"]},
 "outputs": {"values": [], "shapes": [], "types": []},
 "attrs": [{"name": "rf_id", "type": "uint64", "value": 1}]},
{"id": 4, "name": "record_param_comms", "ctrl_deps": 2,
 "inputs": {"values": [[[4, 5, 0, 64, 4, "cuda:0"]], 7, ["0", ""], 0, "allreduce", [], [], 0, 1, 2],
            "shapes": [[[64]], [], [], [], [], [], [], [], [], []],
            "types": ["GenericList[Tensor(float)]", "Int", "Tuple[String,String]", "Int", "String",
                      "GenericList[]", "GenericList[]", "Int", "Int", "Int"]},
 "outputs": {"values": [], "shapes": [], "types": []},
 "attrs": [{"name": "rf_id", "type": "uint64", "value": 2},
           {"name": "tid", "type": "uint64", "value": 1}]}]}
""",
    "kineto": """{"traceEvents": [
{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10, "dur": 5,
 "args": {"External id": 7, "Record function id": 2}},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 12.5,
 "dur": 1, "args": {"External id": 7, "correlation": 9}},
{"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "pid": 0, "tid": 7,
 "ts": 14, "dur": 3.25, "args": {"External id": 7, "correlation": 9, "stream": 7,
 "Collective name": "allreduce", "In msg nelems": 64, "Out msg nelems": 64, "dtype": "Float",
 "Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}}]}
""",
    "launch-vllm": """TP=8
vllm serve org/model --tensor-parallel-size $TP --max-num-seqs 256 --kv-cache-dtype fp8 \\
    --speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'
""",
    "launch-sglang": """python3 -m sglang.launch_server --model-path org/model --tp 8 --dp 8 \\
    --enable-dp-attention --max-running-requests 512 --mem-fraction-static 0.85
""",
    "launch-tensorrt-llm": """cat > serve.yaml <<EOF
enable_attention_dp: true
kv_cache_config:
  dtype: fp8
EOF
trtllm-serve org/model --tp_size 8 --ep_size 8 --extra_llm_api_options serve.yaml
""",
    "launch-megatron": """TP=2
ARGS=(--num-layers 8 --hidden-size 512 --num-attention-heads 8 --vocab-size 32000 --swiglu
  --seq-length 1024 --max-position-embeddings 1024 --num-experts 8 --moe-layer-freq '([0]*1+[1]*7)'
  --micro-batch-size 1 --global-batch-size 32 --bf16 --window-size 255,0)
torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py ${ARGS[@]} --use-distributed-optimizer \\
  --tensor-model-parallel-size $TP --sequence-parallel --pipeline-model-parallel-size 2 \\
  --pipeline-model-parallel-layout 'Et*2|t*2|t*2|t*2L' --num-distributed-optimizer-instances 2
""",
    "launch-megatron-bridge": """# torchrun --nnodes 2 --nproc-per-node 8 run.py
model:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: null
  sequence_parallel: true
  num_layers: 8
  hidden_size: 512
  num_attention_heads: 8
  vocab_size: 32000
  seq_length: 1024
  window_attn_skip_freq: [1, 1, 1, 0, 1, 1, 1, 0]
  window_size: [127, 0]
train: {micro_batch_size: 1, global_batch_size: 32}
mixed_precision: bf16-mixed
""",
    "launch-torchtitan": """[model]
name = "llama3"
flavor = "8B"
converters = ["quantize.linear.float8"]
[training]
local_batch_size = 4
global_batch_size = 64
seq_len = 8192
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_layers_per_stage = 9
""",
    "launch-maxtext": """base_config: base.yml
decoder_block: mixtral
base_emb_dim: 512
num_experts: 8
per_device_batch_size: 0.5
max_target_length: 2048
ici_tensor_parallelism: 2
ici_fsdp_parallelism: 4
dcn_data_parallelism: 2
remat_policy: save_qkv_proj
""",
    "launch-primus": """# NNODES=2 GPUS_PER_NODE=8
modules:
  pre_trainer:
    framework: megatron
    model: ${PRIMUS_MODEL:deepseek_v2_lite}.yaml
    overrides: &common
      num_layers: 4
      moe_layer_freq: [0, 1, 1, 1]
      micro_batch_size: ${PRIMUS_MBS:2}
      global_batch_size: 64
      expert_model_parallel_size: ${.micro_batch_size}
      enable_primus_turbo: true
      use_turbo_grouped_mlp: true
  other: {<<: *common, x: *common}
""",
    "launch-trainer": """deepspeed --num_gpus 8 train.py --deepspeed zero.json --bf16 True \\
  --model_name_or_path org/Llama-2-7b-hf --per_device_train_batch_size 4 --max_seq_length 2048 \\
  --gradient_accumulation_steps 2 --gradient_checkpointing True
""",
    "launch-nemo": """trainer: {devices: 8, num_nodes: 2, precision: bf16}
model:
  micro_batch_size: 1
  global_batch_size: 64
  tensor_model_parallel_size: 2
  encoder_seq_length: 1024
  max_position_embeddings: ${.encoder_seq_length}
  ffn_hidden_size: ${multiply:4, ${model.hidden_size}}
  num_layers: 8
  hidden_size: 512
  num_attention_heads: 8
  tokenizer: {type: GPT2BPETokenizer}
  optim: {name: distributed_fused_adam}
""",
    "launch-mlperf": """source config_common_405b.sh
export MINIBS=16 DGXNNODES=8
export TENSOR_MODEL_PARALLEL=4
export INTERLEAVED_PIPELINE=null
""",
    "launch-nanotron": """parallelism: {dp: 4, tp: 2, pp: 1, tp_mode: REDUCE_SCATTER}
tokens: {batch_accumulation_per_replica: 4, micro_batch_size: 2, sequence_length: 1024}
optimizer: {zero_stage: 1}
model:
  model_config: {is_llama_config: true, hidden_size: 512, num_hidden_layers: 4, vocab_size: 512,
    intermediate_size: 1024, num_attention_heads: 8, num_key_value_heads: 8}
""",
    "launch-deepspeed": """cat > c.json <<EOT
{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
 "zero_optimization": {"stage": 3, "mics_shard_size": 8}, "bf16": {"enabled": true}}
EOT
deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py --deepspeed_config=c.json --zero-stage=3 \\
  --num-layers 8 --hidden-size 512 --num-attention-heads 8 --vocab-size 32000 --seq-length 1024
""",
}


def chakra_example() -> bytes:
    """Return a trace file with every column and kinds of every sort."""
    from perfmodel.workloads.formats.chakra.schema import IO_INFO, NODE_INPUTS, Attribute
    from perfmodel.workloads.formats.chakra.writing import serialise
    from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, METADATA, SEND, TraceBuilder

    builder = TraceBuilder()
    info = Attribute(IO_INFO, ('[\'[{"pg_name": "1", "ranks": [0, 1]}]\']', "[[]]", "['String']"))
    builder.add("groups", METADATA, other={NODE_INPUTS: info, "tid": Attribute("uint32", 3)})
    builder.add("a", COMPUTE, num_ops=2**40, tensor_size=7, on_cpu=1, duration=1.5e-6)
    builder.add("b", COLLECTIVE, collective=0, communication_size=64, group="1", data=[1])
    flags = [True, False]
    builder.add("c", SEND, source=0, destination=1, tag=5, priority=2, control=[1], involved=flags)
    builder.add("d", COMPUTE, inputs=[("x", 8)], outputs=[("y", 2**40)], start_time=3e-6)
    return serialise(builder.build({"schema": "1.0.2-chakra.0.0.4"}, "0.0.4"))


def message_examples() -> list[bytes]:
    """Return the files of two ranks that send, receive and meet, and of their groups.

    As protobuf and as JSON, whose mutants are more often traces.
    """
    from perfmodel.workloads.formats.chakra.json import json_text
    from perfmodel.workloads.formats.chakra.writing import serialise
    from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, RECEIVE, SEND, TraceBuilder

    traces = []
    for rank in range(DEVICES):
        builder = TraceBuilder()
        start = builder.add("a", COMPUTE, duration=1.5e-6, outputs=[("x", 8)])
        kind = RECEIVE if rank else SEND
        end = builder.add(
            "b", kind, source=0, destination=1, tag=1, communication_size=64, data=[start]
        )
        builder.add("c", COLLECTIVE, collective=2, communication_size=4096, group="1", data=[end])
        flags = [True]
        builder.add("d", COLLECTIVE, collective=0, communication_size=64, involved=flags)
        builder.add("e", COMPUTE, num_ops=2**20, tensor_size=64, inputs=[("x", 8)], control=[end])
        traces.append(builder.build(version="0.0.4"))
    return [
        BETWEEN.join([*files, b'{"1": [1, 0]}'])
        for files in (map(serialise, traces), (json_text(trace).encode() for trace in traces))
    ]


def examples(kind: str) -> list[bytes]:
    """Return the good files of a kind."""
    if kind == "chakra":
        return [chakra_example()]
    if kind == SIMULATE:
        return message_examples()
    if kind == OPEN:
        texts = [EXAMPLES[each] for each in WORKLOADS]
        text = EXAMPLES["astra-text"]
        texts += [text.replace(text.split("\n")[0], header) for header in ("DATA", "HYBRID_DLRM 1")]
        return [text.encode() for text in texts]
    return [EXAMPLES[kind].encode()]


def handler(kind: str, folder: Path) -> Callable[[bytes], None]:
    """Return what reads one input of a kind, through files in `folder`."""
    if kind == OPEN:
        return lambda data: _open(_written(folder / "file", data))
    if kind == SIMULATE:
        return _simulated(folder)
    module, function, suffix = READERS[kind]
    read = getattr(importlib.import_module(f"perfmodel.{module}"), function)
    return lambda data: read(_written(folder / f"file{suffix}", data))


def _open(path: Path) -> None:
    """Read a file of any kind as traces, and add up what they hold."""
    from perfmodel.workloads.convert.opening import ASTRA_TEXT, open_traces, workload_kind
    from perfmodel.workloads.convert.summary import traces_summary

    devices = DEVICES if workload_kind(path) == ASTRA_TEXT else None
    traces_summary(open_traces(path, devices=devices))


def _simulated(folder: Path) -> Callable[[bytes], None]:
    """Return what reads two ranks and their groups and runs them on a ring."""
    from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
    from perfmodel.workloads.formats.chakra.files import read_traces
    from perfmodel.workloads.simulation.run import simulate
    from perfmodel.workloads.twins.astra.costs import AstraCosts

    costs = AstraCosts(
        AstraNetwork(("Ring",), (DEVICES,), (50.0,), (500.0,)), uniform_system(["ring"])
    )

    def handle(data: bytes) -> None:
        first, *rest = data.split(BETWEEN, DEVICES)
        suffix = "json" if data.startswith(b"{") else "et"
        paths = [_written(folder / f"file.0.{suffix}", first)]
        paths.append(_written(folder / f"file.1.{suffix}", rest[0] if rest else first))
        groups = _written(folder / "file.groups.json", rest[1]) if rest[1:] else {}
        simulate(read_traces(paths, groups), costs).ticks("wall_time")

    return handle


def fuzz(kind: str, arguments: list[str], folder: Path) -> None:
    """Run one kind with its files in `folder`; libFuzzer ends the process."""
    import atheris

    from perfmodel.base.errors import PerfModelError

    with atheris.instrument_imports(
        include=[
            "perfmodel.workloads.formats",
            "perfmodel.workloads.convert",
            "perfmodel.workloads.simulation",
        ]
    ):
        read = handler(kind, folder)
        formats = ("chakra.json", "flexflow", "pytorch_kineto", "pytorch_host", "astra_text")
        modules = [f"formats.{name}" for name in formats]
        modules += [f"convert.{name}" for name in ("opening", "pytorch", "astra_text", "summary")]
        for module in modules:
            importlib.import_module(f"perfmodel.workloads.{module}")  # readers import them late

    corpus = folder / "corpus"
    corpus.mkdir()
    for i, content in enumerate(examples(kind)):
        (corpus / f"example-{i}").write_bytes(content)
        if kind != OPEN:  # not all kinds run as traces
            read(content)  # else the seed tells nothing
    if "--seeds" in arguments:
        place = arguments.index("--seeds")
        suffix = READERS[kind][2] if kind in READERS else ""
        for i, path in enumerate(sorted(Path(arguments[place + 1]).rglob(f"*{suffix}"))):
            if path.is_file():
                (corpus / f"seed-{i}").write_bytes(path.read_bytes())
        del arguments[place : place + 2]
    words = {word for path in corpus.iterdir() for word in WORD.findall(path.read_bytes())}
    dictionary = folder / "words"
    dictionary.write_text("".join(f'"{word.decode()}"\n' for word in sorted(words)[:2000]))

    warnings.simplefilter("error")  # NumPy warns where numbers overflow

    def handle(data: bytes) -> None:
        try:
            read(data)
        except PerfModelError as error:
            text = str(error)
        else:
            return
        if not text.isprintable() or len(text) > LONGEST_MESSAGE:
            raise AssertionError(f"an error should be one short line: {text[:2000]!r}")

    alone = [argument for argument in arguments if not argument.startswith("-")]
    places = [] if alone else [*([f"-dict={dictionary}"] if words else []), str(corpus)]
    atheris.Setup([sys.argv[0], *LIMITS, *arguments, *places], handle)
    atheris.Fuzz()


def _written(path: Path, content: bytes) -> Path:
    """Write a file and return its path."""
    path.write_bytes(content)
    return path


def run(kind: str, arguments: list[str], quiet: bool, found: Path) -> bool:
    """Run one kind in a process of its own; tell whether every input was handled.

    Inputs that were not are left in `found`.
    """
    # In memory where there is such a folder: a file is written for every input.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        place = f"-artifact_prefix={found}/{kind}-"  # a later one counts
        command = [sys.executable, __file__, WITHIN, folder, kind, place, *arguments]
        done = subprocess.run(command, capture_output=quiet, text=True, check=False)
    if quiet:
        runs = re.search("Done ([0-9]+) runs", done.stderr)
        count = f", {int(runs[1]):,} inputs" if runs else ""
        print(f"{kind}: {'CRASH' if done.returncode else 'handled'}{count}", flush=True)
        if done.returncode:
            print((done.stdout + done.stderr)[-3000:])
    return done.returncode == 0


def main(arguments: list[str]) -> int:
    """Run what the command line says; return the exit status."""
    if arguments[:1] == [WITHIN]:
        fuzz(arguments[2], arguments[3:], Path(arguments[1]))
        return 0
    if not arguments or arguments[0] not in (*KINDS, "all"):
        print(__doc__, f"Kinds: {', '.join(KINDS)}, all", sep="\n", file=sys.stderr)
        return 2
    if importlib.util.find_spec("atheris") is None:
        print("this needs Atheris: pip install atheris", file=sys.stderr)
        return 2
    if (
        "--seeds" in arguments
        and not Path([*arguments, ""][arguments.index("--seeds") + 1]).is_dir()
    ):
        print("--seeds needs a folder of example files", file=sys.stderr)
        return 2
    kind, *rest = arguments
    if not any(word.startswith(("-runs=", "-max_total_time=")) for word in rest):
        rest.append(f"-runs={RUNS}")
    kinds = KINDS if kind == "all" else (kind,)
    found = Path(tempfile.mkdtemp(prefix="perfmodel-fuzz-"))
    handled = [run(each, rest, kind == "all", found) for each in kinds]
    if any(found.iterdir()):
        print(f"inputs that were not handled: {found}")
    else:
        found.rmdir()
    return 0 if all(handled) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
