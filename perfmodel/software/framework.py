"""Declared behaviour of the training software: what it overlaps, fuses and keeps.

A framework is not fitted. Each field states what that software does, as its
documentation or source says; the costs follow from the operations. The values and their
sources stand in ``frameworks/*.toml``, one file each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.base.facts import Run, When, read_folder, release_key, text_of, with_changes
from perfmodel.base.fields import fact, facts_of
from perfmodel.base.units import facts_html
from perfmodel.software.modules import WORDS

FOLDER = Path(__file__).parent / "frameworks"


@dataclass(frozen=True, slots=True)
class Framework:
    """What a training framework does beside the operations that mathematics asks for."""

    def __repr__(self) -> str:
        return f"<Framework {self.name}>"

    def _repr_html_(self) -> str:
        facts = [
            (f"{name}: {about.description}", getattr(self, name))
            for name, about in facts_of(Framework).items()
        ]
        return facts_html(f"framework {self.name}", facts)

    name: str
    """Of the preset, and what was changed of it."""
    flash_attention: bool = fact(
        "fused attention; otherwise two batched products with a softmax between them"
    )
    attention_generation: int = fact(
        "FlashAttention generation of the kernels: 1 (2022), 2 (2023), or 0 for the best that the "
        "device has (FlashAttention 3 or cuDNN on Hopper and Blackwell)"
    )
    best_attention_is_plain: bool = fact(
        "the best attention kernels take no dropout; such calls run on kernels of generation 2"
    )
    best_attention_one_width: bool = fact(
        "they take no values of another width than keys, as latent attention has; likewise"
    )
    deterministic_attention: bool = fact(
        "fused attention's backward passes add the sums of dQ in one order and repeat bit for "
        "bit: blocks wait for each other (deterministic_slowdown of the device, mostly a prior)"
    )
    fills_allocations: bool = fact(
        "every tensor is filled as it is allocated, in a pass of its own: what "
        "torch.use_deterministic_algorithms does unless fill_uninitialized_memory is off"
    )
    fused_cross_entropy: bool = fact(
        "loss and its gradient in two passes over the logits instead of one per step"
    )
    fused_elementwise: bool = fact("norms, activation, bias and dropout-add run as fused kernels")
    fused_norm_and_rotary: bool = fact(
        "RMS norms and rotary embeddings are one kernel each, not the operators that eager PyTorch "
        "composes them of"
    )
    copies_heads: bool = fact(
        "hidden states are ordered by position, attention's tensors by sequence: keys and values "
        "are joined and turned, and what comes out is turned back, in copies; without grouped "
        "heads queries stay a part of the copy of all three, which is kept with them"
    )
    keeps_intermediates: bool = fact(
        "autograd keeps what lies between the kernels of norms and activations, besides the inputs "
        "of products and fused kernels"
    )
    fused_mamba_output: bool = fact(
        "gated norm and output projection of Mamba-2 run inside the function of its scan, which "
        "computes their inputs again; otherwise behind it"
    )
    overlap_tensor_parallel: str = fact(
        "'backward': gradient collectives of column-parallel layers hide behind the weight "
        "gradient; 'full': every tensor-parallel collective is pipelined with its matrix product",
        choices=("none", "backward", "full"),
    )
    gathers_quantised: bool = fact(
        "tensor ranks gather the operands of low-precision products as they are cast, each rank "
        "its own share; otherwise in 16 bits, and cast whole"
    )
    overlap_gradient_reduce: bool = fact("gradient reduction runs beside the last backward")
    overlap_parameter_gather: bool = fact("parameters are gathered beside the first forward")
    overlap_update_gather: bool = fact(
        "with an interleaved pipeline the first chunk is updated ahead of the others, and gathered "
        "beside their update; it is one bucket, also for its gradients"
    )
    broadcasts_parameters: bool = fact(
        "with ZeRO 1 and 2 every rank broadcasts what it has updated, one rank after the other; "
        "otherwise all gather at once"
    )
    overlap_gradient_copies: bool = fact(
        "gradients are reduced among copies of shards (HSDP, slices of TPUs) beside backward, else "
        "behind it"
    )
    stage_split: str = fact(
        "layers over pipeline stages: 'even', with embedding and output as a layer each where "
        "that does not divide; 'by_cost', as many as make equal products with the output matrix; "
        "or a layout (--stage-layers)"
    )
    overlap_pipeline: bool = fact("stage-to-stage sends hide behind the next chunk's compute")
    scatters_sends: bool = fact(
        "without sequence parallelism each tensor rank sends its share of the hidden state to the "
        "next stage, whose ranks gather it; otherwise each sends all of it"
    )
    overlap_expert_parallel: bool = fact(
        "dispatch and combine of one micro-batch hide behind another's compute"
    )
    overlap_shared_experts: bool = fact(
        "products of shared experts run beside the dispatch and the combine of routed ones"
    )
    routing: str = fact(
        "how tokens choose experts, as docs/routing.md names it: the busiest rank sets the pace"
    )
    expert_counts_on_host: bool = fact(
        "the host waits for the device ahead of each dispatch, to learn how many tokens each "
        "expert gets; it cannot issue work ahead of that"
    )
    expert_dispatch: str = fact(
        "how tokens reach their experts: 'all_to_all' sends one once per expert; 'deepep' and "
        "'hybrid_ep' (bulk copies) once to each rank, or between nodes to each node, that holds "
        "any of its experts; 'all_gather' gives every rank all tokens of the group; 'einsum' sends "
        "the places of all experts, which products with a mask over tokens fill and empty",
        choices=("all_to_all", "all_gather", "deepep", "hybrid_ep", "einsum"),
    )
    exchange_algorithm: str = fact(
        "how an all-to-all of experts goes: 'auto', as the collective library does it; 'direct', "
        "each message straight to its rank; 'hierarchical', inside nodes and then among equal "
        "positions of them; 'rail_aligned', both at once, as NCCL's PXN forwards",
        choices=("auto", "direct", "hierarchical", "rail_aligned"),
    )
    capacity_factor: float = fact(
        "every expert takes this many times the mean of the tokens, others are dropped, what is "
        "missing is padded, and no rank has to tell counts; 0: no token is dropped",
        minimum=0.0,
    )
    expert_buffer: float = fact(
        "rows of the buffer that takes the tokens of other ranks, over their mean, and at most "
        "what may come: all of it is sorted and activated, what it cannot hold is dropped; 0: "
        "what comes, and no more, is",
        minimum=0.0,
    )
    expert_tile_rows: float = fact(
        "rows of a tile of grouped products where tiles that lie across a border between experts "
        "are computed for both; 0: every expert has tiles of its own, as the library chooses",
        minimum=0.0,
    )
    gathers_alone: bool = fact(
        "tokens are repeated once per expert ahead of the gather that sorts them, and their "
        "results added up behind the one that brings them back, in passes of their own; otherwise "
        "both are one with it"
    )
    exchange_units: float = fact(
        "compute units that DeepEP's kernels take for their copies", minimum=1.0
    )
    reserves_exchange_units: bool = fact(
        "matrix kernels beside exchanges are launched on the compute units that these leave, and "
        "keep to them throughout; otherwise they lose units only while tokens are on their way"
    )
    dispatch_bytes: float = fact(
        "one dispatched activation; it is combined in 2", "B", positive=True
    )
    scaling: str = fact(
        "fp8 scales come from earlier steps, or from a pass of their own over the tensor, or every "
        "row and every column of it has its own",
        choices=("delayed", "current", "rows"),
    )
    reduces_scales: bool = fact(
        "with delayed scales, maxima are reduced over all ranks of a stage after every pass of a "
        "chunk"
    )
    low_precision_parameters: bool = fact(
        "parameters are stored in the low precision of the products, without a 16-bit copy beside "
        "the fp32 master"
    )
    grouped_gemm: bool = fact(
        "all experts of a device run in one launch; otherwise one product each"
    )
    sorts_chunks: bool = fact(
        "PyTorch's operators permute tokens: those that arrive are sorted by splitting and joining "
        "tensors, one for each expert, on the host, and copies are added up element by element; "
        "otherwise kernels for it do"
    )
    gradient_accumulation: str = fact(
        "'fused': products add weight gradients to the main gradient; 'autograd': a kernel of its "
        "own adds 16-bit ones in place; 'separate': one adds them to a wider main gradient",
        choices=("fused", "autograd", "separate"),
    )
    empty_gradient_bytes: float = fact(
        "of the output matrix, beside the loss: an empty tensor that autograd's hooks are handed "
        "where a 'fused' product has added to the main gradient",
        "B",
        minimum=0.0,
    )
    gradient_bytes: float = fact("one stored main gradient", "B", positive=True)
    gradient_reduce_bytes: float = fact("one gradient on the wire", "B", positive=True)
    gradient_copies_bytes: float = fact(
        "the same among copies of shards (HSDP, slices of TPUs); 0: as within a set", "B"
    )
    gather_copy_bytes: float = fact(
        "read and written in a device's own memory to copy one parameter, gathered in 16 bits, "
        "out of the buffer of its gather",
        "B",
    )
    reduce_copy_bytes: float = fact(
        "the same to bring one gradient into the buffer that is reduced", "B"
    )
    optimizer_bytes: float = fact("optimizer state per parameter: master copy and two moments", "B")
    master_parameters: bool = fact(
        "sharded parameters are the fp32 master themselves; 16-bit ones are cast when a part is "
        "gathered, and stay only where all of them are gathered at once"
    )
    persistent_gradients: bool = fact(
        "main gradients are buffers that exist throughout; otherwise they appear in the first "
        "backward of a step"
    )
    beside_gradient_bytes: float = fact(
        "16-bit gradients that stay beside the main ones, with more than one replica: buckets of "
        "DistributedDataParallel, low-precision gradients that wait for the next backward",
        "B",
        minimum=0.0,
    )
    beside_with_zero: bool = fact(
        "those are there where ranks share the optimizer's state, too; otherwise with ZeRO 0 alone"
    )
    pass_gradient_bytes: float = fact(
        "autograd's own gradients beside the main ones: of all parameters, from their backward "
        "until that of the micro-batch has ended",
        "B",
        minimum=0.0,
    )
    gathers_flat: bool = fact(
        "with ZeRO 1 and 2 all parameters of a device are gathered at once: shares are copied from "
        "and to lists of tensors, and received in one buffer as large as all of them, which the "
        "caching allocator then holds through the next step"
    )
    whole_gradients_in_pipeline: bool = fact(
        "gradients stay whole, in the type in which they are reduced, until a pipeline has drained"
    )
    gradients_in_own_pool: bool = fact(
        "sharded gradients come from the allocator's pool of another stream, whose memory the "
        "activations of the next step cannot use"
    )
    receives_ahead: bool = fact(
        "a pipeline stage keeps what it sends and has buffers for what it receives, of every "
        "micro-batch of a step"
    )
    gathers_ends_with_root: bool = fact(
        "embedding and output are gathered with the root of the model, for the whole step; "
        "otherwise as parts of their own"
    )
    update_bytes: float = fact(
        "temporaries of the update per parameter, as tensors no larger than one", "B", minimum=0.0
    )
    idle_update_bytes: float = fact(
        "the same in blocks larger than any that activations free, so that the caching allocator "
        "holds them through the next step",
        "B",
        minimum=0.0,
    )
    logit_bytes: float = fact("kept of a logit from the loss to its backward", "B", minimum=0.0)
    loss_bytes: float = fact(
        "beside that, while the loss goes forward or backward", "B", minimum=0.0
    )
    sharded_loss_bytes: float = fact(
        "the same where tensor ranks share the vocabulary; 0: as without", "B", minimum=0.0
    )
    idle_logit_bytes: float = fact(
        "of a logit that is freed ahead of the wider copies, in blocks that the caching allocator "
        "keeps and cannot use for them",
        "B",
        minimum=0.0,
    )
    held_logit_bytes: float = fact(
        "of what is kept of a logit, what the caller holds until the step has ended",
        "B",
        minimum=0.0,
    )
    keeps_gathered_inputs: bool = fact(
        "with sequence parallelism products keep the input that they have gathered; otherwise "
        "this rank's share, and gather it again in backward"
    )
    gather_buffers: float = fact(
        "global buffers, each of a hidden state as tensor ranks have gathered it, that stay while "
        "others are gathered",
        minimum=0.0,
    )
    groups_per_axis: float = fact(
        "communicators for each group of ranks: as many as libraries that make their own", minimum=1
    )
    bucket_bytes: float = fact("gradients per data-parallel bucket", "B", positive=True)
    bucket_bytes_per_rank: float = fact(
        "gradients that a bucket has at least for each data-parallel rank, so that pieces of rings "
        "do not become short",
        "B",
    )
    reduces_whole_gradients: bool = fact(
        "with ZeRO 1 every rank gets all reduced gradients (an all-reduce); otherwise each its own"
    )
    graph_launch: bool = fact("kernels are launched from a captured graph or one compiled program")
    graph_scope: str = fact(
        "what captured graphs hold where they hold no whole layers",
        choices=("none", "router", "attention", "attention_router"),
    )
    layer_graphs: bool = fact(
        "each layer is a captured graph of its own: what it keeps and needs lies in a private pool "
        "of the allocator, which eager code (the loss) cannot use, nor the graphs what that has "
        "freed"
    )
    operators_per_kernel: float = fact(
        "operators that the host dispatches for each kernel outside of graphs: the one that "
        "launches it, views, allocations and autograd's nodes around it",
        minimum=1.0,
    )
    logging_time: float = fact(
        "host's time per step for what is logged (norms and zeros of parameters, timers, memory), "
        "during which the device waits; beside step_overhead",
        "s",
        minimum=0.0,
    )
    checks_collectives: bool = fact(
        "the hosts of a group compare what each of them is about to issue, ahead of every "
        "collective: PyTorch under TORCH_DISTRIBUTED_DEBUG=DETAIL"
    )
    activation_bytes: float = fact("one stored activation", "B", positive=True)
    activation_input_bytes: float = fact(
        "kept of what a gated activation reads; 0: as of any activation", "B", minimum=0.0
    )
    repeats_activations: bool = fact(
        "what gated activations put out is never kept: backward computes it again, whatever else "
        "is recomputed"
    )
    attention_output_bytes: float = fact(
        "kept of attention's output, for its own backward and for the low-precision product behind "
        "it; 0: as of any activation, and cast besides",
        "B",
        minimum=0.0,
    )
    scales_in_experts: bool = fact(
        "weights of the choice scale what experts' activations put out, ahead of their last "
        "product; otherwise what the experts put out, which is kept for the weights' gradient"
    )
    dropout: bool = fact("dropout is on: its masks (1 byte per element) are written and kept")
    pads_vocabulary_to: int = fact(
        "vocabulary is padded to a multiple of this times tensor_parallel", minimum=1
    )
    # What a published run means that does not say.
    zero_stage: int = fact("ZeRO stage of a run that states none")
    gathers_once_in_pipeline: bool = fact(
        "with a pipeline, gathered parameters stay from forward to backward: ZeRO 2 in place of 3"
    )
    sequence_parallel: bool = fact("on with tensor parallelism in a run that does not say")
    context_parallel_kind: str = fact(
        "how context ranks exchange keys and values in a run that does not say",
        choices=("ring", "all_gather", "all_to_all"),
    )
    merges_attention: str = fact(
        "what adds up a rank's attention to its own keys and to those of other ranks: 'kernel': "
        "one kernel per piece of a ring, in 16 bits; 'composed': PyTorch's operators in fp32, "
        "piece by piece where keys are gathered, too",
        choices=("kernel", "composed"),
    )
    expert_tensor_parallel: bool = fact(
        "experts too are divided by the tensor degree in a run that does not say"
    )
    layers_per_chunk: int = fact(
        "layers of a virtual pipeline chunk that a run usually has that does not say; 0: a stage "
        "is one chunk"
    )
    micro_batches_per_stage: int = fact(
        "micro-batches per pipeline stage and replica in a run that does not say; 0: any number"
    )
    recompute: str = fact(
        "what a run recomputes that does not say; empty: the least with which it fits",
        choices=("", "none", "selective", "full"),
    )
    selective_recompute: str = fact(
        "what selective recomputation repeats, in words: modules of Megatron-Core's "
        "recompute_modules; 'cheap', the core of unfused and what is cheap beside fused attention; "
        "'alternate_products', all but attention, reductions, exchanges and every second matrix "
        "product; or with save_… all but what makes the outputs saved",
        choices=WORDS,
        several=True,
    )
    offload_modules: str = fact(
        "modules of a layer whose inputs wait elsewhere where activations do (attn_norm, "
        "qkv_linear, core_attn, attn_proj, mlp_norm, expert_fc1, moe_act, or these two and what "
        "lies behind as fused_group_mlp), with spaces between; empty: all that a layer keeps"
    )
    overlap_nvme: bool = fact(
        "of optimizer states that wait on NVMe drives, the next tile is read and the last one "
        "written beside the host's update of one; otherwise in turn",
    )
    prediction_modules: bool = fact(
        "models published with multi-token-prediction modules are trained with them in a run that "
        "does not say"
    )
    accumulates_gradients: bool = fact(
        "a replica's sequences run as several micro-batches; otherwise, without a pipeline, as one"
    )
    compiles_on_request: bool = fact(
        "fused kernels come from a compiler that each run may leave out"
    )
    tensor_overlap_on_request: bool = fact(
        "overlap 'full' of tensor parallelism is a switch of each run; otherwise 'backward' stays"
    )
    fp8_library: str = fact(
        "whose casts and scales low-precision products use",
        choices=("none", "transformer-engine", "torchao", "xla"),
    )
    # Which release it is.
    software: str = fact(
        "software whose release it is; empty where it is of no release", default=""
    )
    since: str = fact("first release for which this holds, or the first of its year", default="")
    released: str = fact("month of that release, YYYY-MM", default="")


IDENTITY = ("software", "since", "released")
"""Facts that say which release it is; they are chosen by its name."""

_RECORDS = read_folder(FOLDER, {"": Framework}, StrategyError, own=IDENTITY)

FRAMEWORKS: Mapping[str, Framework] = {name: it.facts[""] for name, it in _RECORDS.items()}
"""Presets by name; those of a release are called after it, NAME@RELEASE."""

SOURCES: Mapping[str, Mapping[str, str]] = {name: it.source for name, it in _RECORDS.items()}
"""Preset -> field -> where its value is from."""


TITLES: Mapping[str, str] = {name: it.title for name, it in _RECORDS.items()}
"""Preset -> what it is, in a line."""

WHEN: Mapping[str, tuple[When, ...]] = {name: it.when for name, it in _RECORDS.items()}
"""Preset -> what holds for some runs only."""

OF_MEASURED_RUNS = (
    "zero_stage",
    "gathers_once_in_pipeline",
    "sequence_parallel",
    "context_parallel_kind",
    "expert_tensor_parallel",
    "layers_per_chunk",
    "micro_batches_per_stage",
    "recompute",
    "prediction_modules",
    "accumulates_gradients",
    "compiles_on_request",
    "tensor_overlap_on_request",
    "fp8_library",
)
"""Fields that say what a published run means; a projection is told by its strategy."""


AS_STATED = "[as stated]"
"""Ends the name of a framework whose every fact is as its run states it."""


def load_framework(name: str | Framework, /, **changes: Any) -> Framework:
    """Return a framework preset by name, with single fields changed.

    Parameters
    ----------
    name : str or Framework
        See `find_framework`.
    **changes
        Values of fields; the name of the result says which differ from the preset
        (``megatron[gradient_bytes=2]``).

    Raises
    ------
    StrategyError
        Unknown preset or field, or a value that the field cannot have.
    """
    if isinstance(name, str):
        name = FRAMEWORKS[find_framework(name)]
    framework: Framework = with_changes(name, changes, FRAMEWORKS, "framework", StrategyError)
    if name.name.endswith(AS_STATED):
        return replace(framework, name=name.name)
    preset = framework.name.partition("[")[0]
    depends = {key for entry in WHEN.get(preset, ()) for key in entry.values}
    again = [key for key in changes if key in depends and f"{key}=" not in framework.name]
    if again:  # set to what the preset says anyway: then it holds for every run
        pairs = ",".join(f"{key}={text_of(getattr(framework, key))}" for key in again)
        inside = framework.name.partition("[")[2].rstrip("]")
        framework = replace(framework, name=f"{preset}[{','.join(filter(None, (inside, pairs)))}]")
    return framework


def product(framework: Framework) -> str:
    """Return what software a framework is, without its release or what was changed of it."""
    return framework.software or framework.name.partition("[")[0].partition("-")[0]


def framework_of_record(record: Mapping[str, Any]) -> Framework:
    """Return the framework whose name and facts were stored with results.

    Facts that are as the preset has them stay open to what it says of some runs only, unless the
    name says that they were set.
    """
    name = str(record["name"])
    preset = FRAMEWORKS[name.partition("[")[0]]
    changed = {
        key: value
        for key, value in record.items()
        if key not in ("name", *IDENTITY)
        and (value != getattr(preset, key, None) or f"{key}=" in name)
    }
    return load_framework(preset, **changed)


def releases_of(software: str) -> list[str]:
    """Return the presets of a software's releases, oldest first."""
    found = [name for name, item in FRAMEWORKS.items() if item.software == software]
    return sorted(found, key=lambda name: (FRAMEWORKS[name].released, FRAMEWORKS[name].since))


def framework_names() -> list[str]:
    """Return what a user may choose: presets, and software whose newest release is meant."""
    names = (item.software if "@" in name else name for name, item in FRAMEWORKS.items())
    return list(dict.fromkeys((*names, "plain")))


def find_framework(name: str) -> str:
    """Return the preset that a name means: its own, or ``NAME@RELEASE``.

    A release is a number (``megatron-bridge@0.4.1``) or a month or year (``plain@2023-05``);
    what holds for it is the newest preset that is not later. A software without a release is
    its newest.

    Raises
    ------
    StrategyError
        There is no such preset or software, or what follows the ``@`` is no release of it.
    """
    if name in FRAMEWORKS:
        return name
    plain, mark, release = name.partition("@")
    software = FRAMEWORKS[plain].software if plain in FRAMEWORKS else plain
    releases = releases_of(software) if software else []
    if not releases:
        if plain in FRAMEWORKS:
            raise StrategyError(f"framework '{plain}' has no releases; leave '@{release}' out")
        hint = did_you_mean(plain, dict.fromkeys([*framework_names(), *FRAMEWORKS]))
        raise StrategyError(f"unknown framework '{name}'{hint}")
    if not mark:
        return releases[-1]
    if re.fullmatch(r"20\d\d(-\d\d)?", release):
        month = release if "-" in release else f"{release}-12"
        held = [it for it in releases if FRAMEWORKS[it].released <= month]
    elif wanted := release_key(release):
        held = [it for it in releases if release_key(FRAMEWORKS[it].since) <= wanted]
    else:
        facts = [FRAMEWORKS[it] for it in releases]
        known_releases = ", ".join(it.since or it.released for it in facts)
        raise StrategyError(
            f"framework '{name}': a release is a number or a year; {software} is known since "
            f"{known_releases}"
        )
    return held[-1] if held else releases[0]


def as_run(framework: Framework, run: Run) -> Framework:
    """Return what holds for a run, with the facts that its release states for such runs only.

    What was changed of a preset stays changed.
    """
    if framework.name.endswith(AS_STATED):
        return framework
    preset = framework.name.partition("[")[0]
    values: dict[str, Any] = {}
    for entry in WHEN.get(preset, ()):
        if entry.holds(run):
            values |= entry.values
    stated = set(re.findall(r"(\w+)=", framework.name))
    return replace(framework, **{key: it for key, it in values.items() if key not in stated})
