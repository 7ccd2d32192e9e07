"""What AICB's AIOB times on a GPU, and the computation file that it would measure.

What AICB's AIOB times on a GPU: the kernels of each region, in order.

Source: aliyun/aicb 23eec3c4, ``workload_generator/mocked_model/training/AiobMegatron.py``
(M) and ``AiobDeepSeek.py`` (D). AIOB times the forward pass of every region with CUDA
events around it, in eager PyTorch; its tensors are [sequence, micro-batch, hidden].

Predict the computation file that AICB's AIOB would measure on a GPU.

AIOB needs the GPU; this needs a hardware profile. Every region's kernels
(`perfmodel.workloads.twins.aicb.computation`) are timed by the models that projections use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.base.errors import StrategyError
from perfmodel.base.precisions import ALIASES, OPERAND_BYTES
from perfmodel.compute.stream_catalogue import (
    StreamWork,
    cast,
    elementwise,
    embedding,
    norm,
    softmax,
)
from perfmodel.hwprofiles import Hardware
from perfmodel.workloads.formats.aiob import AiobFile, AiobTime
from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.parameters import layers_of_stage, total_parameters


@dataclass(frozen=True, slots=True)
class Product:
    """``batch`` products C[m, n] = A[m, k] B[k, n]; fp8: in DeepGEMM's blocks of 128."""

    m: float
    n: float
    k: float
    batch: float = 1.0
    fp8: bool = False


@dataclass(frozen=True, slots=True)
class GroupedProduct:
    """``groups`` products of ``rows`` rows each, in one kernel."""

    groups: int
    rows: float
    n: float
    k: float


@dataclass(frozen=True, slots=True)
class FlashAttention:
    """Causal flash attention."""

    batch: int
    length: int
    heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Region:
    """What AIOB times at once.

    Attributes
    ----------
    kernels : tuple
        In order; each one is a call of PyTorch's.
    small_calls : int
        Further calls ahead of them whose kernels move next to nothing.
    repeats : int
        Times of so many equal regions are added (experts, one after another).
    """

    kernels: tuple[Product | GroupedProduct | FlashAttention | StreamWork, ...]
    small_calls: int = 0
    repeats: int = 1


def timed_regions(arguments: AicbArguments) -> dict[str, Region]:
    """Return the regions of an AIOB file, in its order.

    Parameters
    ----------
    arguments : AicbArguments
        Of a training workload.

    Returns
    -------
    dict of str to Region
        Section of the file to its kernels; ``param_time`` is left to the caller, who
        counts the parameters.
    """
    a = arguments
    size = OPERAND_BYTES[ALIASES.get(a.dtype, "fp32")]
    tokens = a.seq_length * a.micro_batch
    # Under sequence parallelism, norms see a part of the tokens; all else sees all (M:350).
    normed = tokens // a.tensor_model_parallel_size if a.enable_sequence_parallel else tokens
    layer_norm = Region((norm(normed, a.hidden_size, size, mean=True),))
    attention = _latent_attention if a.frame == "DeepSeek" else _attention
    logits = a.padded_vocab_size // a.tensor_model_parallel_size
    return {
        "Emb": _embedding(a),
        "layernorm": layer_norm,
        **attention(a, tokens, size),
        "layernorm2": layer_norm,
        **_feed_forward(a, tokens, size),
        "layernorm_post": layer_norm,
        "logit_time": Region((Product(tokens, logits, a.hidden_size),)),
    }


def _embedding(a: AicbArguments) -> Region:
    """Embed (M:205): a table of int64 (!), fp32 positions, their sum, a transposed copy."""
    tokens, hidden = a.seq_length * a.micro_batch, a.hidden_size
    elements = float(tokens * hidden)
    positions = embedding(a.seq_length, hidden, 4.0)
    total = StreamWork(12.0 * elements, 4.0 * elements, elements)
    kernels = (embedding(tokens, hidden, 8.0), positions, total, cast(elements, 4.0, 4.0))
    # With tensor parallelism, tokens of other ranks are masked first (M:247).
    return Region(kernels, small_calls=7 if a.tensor_model_parallel_size > 1 else 0)


def _attention(a: AicbArguments, tokens: int, size: float) -> dict[str, Region]:
    """Multi-head attention, with flash attention (M:525) or without (M:364)."""
    split = a.tensor_model_parallel_size
    heads = a.attention_heads // split
    width = a.hidden_size // a.attention_heads
    part = a.hidden_size // split
    projection = Region((Product(tokens, 3 * a.hidden_size // split, a.hidden_size),))
    output = Product(tokens, a.hidden_size, part)
    if a.use_flash_attn:
        flash = FlashAttention(a.micro_batch, a.seq_length, heads, width)
        copied = elementwise("copy", tokens * part, size)
        return {
            "atten_qkv": projection,
            "atten_flash": Region((flash,)),
            "atten_linear": Region((copied, output)),
        }
    length, batch = a.seq_length, a.micro_batch * heads
    scores = float(batch) * length * length
    scaled = elementwise("mul_scalar", scores, size)
    context = Product(length, width, length, batch)
    return {
        "atten_qkv": projection,
        "atten_core_qk": Region((Product(length, length, width, batch),)),
        "atten_core_softmax": Region((scaled, softmax(batch * length, length, size))),
        "atten_core_contex": Region((context, elementwise("copy", tokens * part, size))),
        "atten_linear": Region((output,)),
    }


def _latent_attention(a: AicbArguments, tokens: int, size: float) -> dict[str, Region]:
    """DeepSeek's latent attention (D:423), every region as AIOB runs it.

    It takes the first of [sequence, micro-batch] for the batch (D:495), so each "sequence"
    has as many tokens as there are micro-batch entries, and scores cost next to nothing.
    """
    heads = a.attention_heads // a.tensor_model_parallel_size
    key = a.qk_nope_dim + a.qk_rope_dim
    latent, hidden = a.kv_lora_rank, a.hidden_size
    length, batch = a.micro_batch, a.seq_length
    scores = float(batch) * length * heads * length
    absorbed = (
        Product(tokens, latent, a.qk_nope_dim, heads),
        Product(length * heads, length, latent, batch),
        Product(length * heads, length, a.qk_rope_dim, batch),
        elementwise("add", scores, size),
        elementwise("mul_scalar", scores, size),
        softmax(batch * length * heads, length, 4.0),
        cast(scores, 4.0, size),
        Product(length * heads, latent, length, batch),
        Product(tokens, a.v_head_dim, latent, heads),
    )
    return {
        "attention_linear_q_lora": Region(
            (Product(tokens, a.q_lora_rank, hidden), norm(tokens, a.q_lora_rank, size, fused=False))
        ),
        "attention_q_column": Region((Product(tokens, heads * key, a.q_lora_rank),)),
        "attention_linear_kv_lora": Region(
            (
                Product(tokens, latent + a.qk_rope_dim, hidden),
                norm(tokens, latent, size, fused=False),
            )
        ),
        "attention_kv_column": Region(absorbed),
        "attention_o_row": Region((Product(tokens, hidden, heads * a.v_head_dim),)),
    }


def _feed_forward(a: AicbArguments, tokens: int, size: float) -> dict[str, Region]:
    """Dense layers (M:687), or the experts of this rank on evenly shared tokens (M:1058)."""
    split, hidden, inner = a.tensor_model_parallel_size, a.hidden_size, a.feed_forward_size
    if a.frame == "DeepSeek" and a.moe_enable:
        return _deepseek_experts(a, tokens, size)
    first = (2 * inner if gated(a) else inner) // split
    if not a.moe_enable:
        activation = _activation(a, float(tokens) * inner // split, size, bias=True)
        one, two = Product(tokens, first, hidden), Product(tokens, hidden, inner // split)
        return _linear_regions((one,), activation, (two,), 1)
    experts = a.num_experts // a.expert_model_parallel_size
    each = tokens * a.moe_router_topk * a.expert_model_parallel_size // a.num_experts
    if a.moe_grouped_gemm:
        activation = _activation(a, float(experts * each) * inner // split, size, bias=False)
        grouped = GroupedProduct(experts, each, first, hidden)
        back = GroupedProduct(experts, each, hidden, inner // split)
        return _linear_regions((grouped,), activation, (back,), 1)
    activation = _activation(a, float(each) * inner // split, size, bias=True)
    one, two = Product(each, first, hidden), Product(each, hidden, inner // split)
    return _linear_regions((one,), activation, (two,), experts)


def _deepseek_experts(a: AicbArguments, tokens: int, size: float) -> dict[str, Region]:
    """Run every local and shared expert over all tokens (D:679): fp8 in, bf16 out, no split."""
    hidden, inner = a.hidden_size, a.feed_forward_size
    experts = a.n_shared_expert + a.num_experts // a.expert_model_parallel_size
    up = Product(tokens, inner, hidden, fp8=True)
    silu = (elementwise("silu", float(tokens) * inner, size),)
    return _linear_regions((up, up), silu, (Product(tokens, hidden, inner),), experts)


def _linear_regions(
    one: tuple[Product | GroupedProduct, ...],
    activation: tuple[StreamWork, ...],
    two: tuple[Product | GroupedProduct, ...],
    repeats: int,
) -> dict[str, Region]:
    """Return the three regions of an MLP."""
    return {
        "mlp_linear_1": Region(one, repeats=repeats),
        "mlp_gelu": Region(activation, repeats=repeats),
        "mlp_linear_2": Region(two, repeats=repeats),
    }


def gated(a: AicbArguments) -> bool:
    """Tell whether the first linear layer is twice as wide."""
    return a.swiglu or bool(a.gated_linear_unit)


# Calls of AICB's own activations (utils.py, gelu_impl and erf_gelu), each over all elements.
WRITTEN_OUT = {
    "openai_gelu": ("mul_scalar", "mul_scalar", "mul_scalar", "mul", "add_scalar", "mul", "tanh",
                    "add_scalar", "mul"),
    "onnx_safe": ("mul_scalar", "div_scalar", "tanh", "fill", "add", "mul"),  # tanh for erf
}  # fmt: skip


def _activation(
    a: AicbArguments, elements: float, size: float, bias: bool
) -> tuple[StreamWork, ...]:
    """Apply the activation in eager kernels: SwiGLU is a SiLU and a product (M:720).

    `bias`: added ahead of it where the model has one, over the width of the first matrix.
    """
    wide = elements * (2.0 if gated(a) else 1.0)
    added = (elementwise("add_scalar", wide, size),) if bias and a.add_bias_linear else ()
    for option, calls in WRITTEN_OUT.items():  # these come before SwiGLU
        if getattr(a, option):
            return (*added, *(elementwise(call, wide, size) for call in calls))
    if a.swiglu:
        return (*added, elementwise("silu", elements, size), elementwise("mul", elements, size))
    if a.squared_relu:
        return (*added, elementwise("relu", wide, size), elementwise("pow_scalar", wide, size))
    return (*added, elementwise("gelu", wide, size))


DTYPES = ("bfloat16", "float16", "float32")

CALL_LATENCY = 40e-6
"""Host time of one call of PyTorch's inside a region [s].

AIOB waits for the device after every region, so that a region's kernels wait for the host.
Our fit, to 10 us, to the eager runs that `benchmarks/accuracy/aiob.py` reads; it prints the
residuals and what other latencies would give.
"""

Kernel = Product | GroupedProduct | FlashAttention | StreamWork


def predicted_computation(
    arguments: AicbArguments, hardware: Hardware, *, call_latency: float = CALL_LATENCY
) -> AiobFile:
    """Return the AIOB file of a training workload on a device.

    Parameters
    ----------
    arguments : AicbArguments
        Model, sequence, micro-batch and degrees as for the workload itself.
    hardware : Hardware
        Profile of the device.
    call_latency : float
        Host time of one PyTorch call [s]; 0: the device alone.

    Returns
    -------
    AiobFile
        Sections in AICB's order, µs to three digits. A prediction has no noise: maximum,
        minimum and average are one number.

    Raises
    ------
    HardwareError
        The device lacks a precision (DeepSeek's experts are multiplied in fp8).
    StrategyError
        Sizes that cannot be split as asked, or a workload that is not of training.
    """
    if arguments.generator != "training":
        raise StrategyError("AIOB's computation file is predicted for training workloads")
    regions = predicted_regions(arguments, hardware, call_latency=call_latency)
    parameters, _ = total_parameters(layers_of_stage(arguments))
    regions["param_time"] = parameter_pass_time(parameters, hardware, call_latency=call_latency)
    sections = {}
    for name, time in regions.items():
        micros = round(time * 1e6, 3)
        sections[name] = AiobTime(micros, micros, micros)
    return AiobFile(sections, train_iter=arguments.epoch_num)


def predicted_regions(
    arguments: AicbArguments,
    hardware: Hardware,
    *,
    call_latency: float = CALL_LATENCY,
) -> dict[str, float]:
    """Time the regions of an AIOB file.

    Parameters
    ----------
    arguments : AicbArguments
        Of a training workload.
    hardware : Hardware
        Profile of the device.
    call_latency : float
        Host time of one PyTorch call [s]; 0: the device alone.

    Returns
    -------
    dict of str to float
        Section to time [s], without ``param_time``.

    Raises
    ------
    HardwareError
        The device lacks a precision (DeepSeek's experts are multiplied in fp8).
    StrategyError
        Sizes that cannot be split as asked.
    """
    _check(arguments)
    regions = timed_regions(arguments)
    kernels = [kernel for region in regions.values() for kernel in region.kernels]
    times = dict(zip(map(id, kernels), _kernel_times(kernels, arguments, hardware), strict=True))
    return {
        name: region.repeats * _region_time(region, times, call_latency)
        for name, region in regions.items()
    }


def parameter_pass_time(
    elements: int, hardware: Hardware, *, call_latency: float = CALL_LATENCY
) -> float:
    """Time ``param_time``: one division of all fp32 gradients in place [s].

    `elements` are the parameters of one tensor-parallel shard. AICB 23eec3c4 divides that
    number by the tensor-parallel degree once more; the files that it ships and those of its
    forks fit the whole shard (``AiobMegatron.py:911``).
    """
    from perfmodel.compute.stream import work_times

    work = elementwise("div_scalar", float(elements), 4.0)
    return call_latency + float(work_times(hardware, work).time[0])


def _check(a: AicbArguments) -> None:
    """Raise where AIOB's ``divide`` would (utils.py: ``numerator % denominator == 0``)."""
    split = a.tensor_model_parallel_size
    for what, number in (
        ("hidden_size", a.hidden_size),
        ("num_attention_heads", a.attention_heads),
        ("ffn_hidden_size", a.feed_forward_size),
    ):
        if number % split:
            raise StrategyError(
                f"--{what}={number} is no multiple of --tensor_model_parallel_size={split}"
            )
    if a.hidden_size % a.attention_heads:
        raise StrategyError(
            f"--hidden_size={a.hidden_size} is no multiple of "
            f"--num_attention_heads={a.attention_heads}"
        )
    if a.dtype not in DTYPES:
        raise StrategyError(f"--dtype={a.dtype}: AIOB knows {', '.join(DTYPES)}")


def _kernel_times(kernels: Sequence[Kernel], a: AicbArguments, hardware: Hardware) -> list[float]:
    """Time each kernel alone on the device [s]."""
    from perfmodel.compute.attention import attention_times
    from perfmodel.compute.gemm import gemm_times, quantised_gemm_times
    from perfmodel.compute.grouped_gemm import grouped_gemm_times
    from perfmodel.compute.stream import work_times

    precision = ALIASES[a.dtype]
    times: list[float] = []
    for kernel in kernels:
        if isinstance(kernel, StreamWork):
            found = work_times(hardware, kernel).time
        elif isinstance(kernel, FlashAttention):
            found = attention_times(
                hardware,
                precision,
                kernel.batch,
                kernel.length,
                kernel.length,
                kernel.heads,
                kernel.heads,
                kernel.head_dim,
                kernel.head_dim,
            ).time
        elif isinstance(kernel, GroupedProduct):
            rows = [np.full(kernel.groups, kernel.rows)]
            found = grouped_gemm_times(hardware, precision, rows, [kernel.n], [kernel.k]).time
        elif kernel.fp8:
            products, _ = quantised_gemm_times(hardware, "fp8_block", kernel.m, kernel.n, kernel.k)
            found = products.time
        else:
            sizes = (kernel.m, kernel.n, kernel.k, kernel.batch)
            found = gemm_times(hardware, precision, *sizes).time
        times.append(float(np.ravel(found)[0]))
    return times


def _region_time(region: Region, times: dict[int, float], call_latency: float) -> float:
    """Time a region: each kernel starts when the host has issued it and the last one ended."""
    end = 0.0
    issued = region.small_calls * call_latency
    for kernel in region.kernels:
        issued += call_latency
        end = max(issued, end) + times[id(kernel)]
    return end
