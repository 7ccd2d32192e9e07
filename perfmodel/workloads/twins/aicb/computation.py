"""Predict the computation file that AICB's AIOB would measure on a GPU.

AIOB needs the GPU; this needs a hardware profile. Every region's kernels
(`perfmodel.workloads.twins.aicb.computation_regions`) are timed by the models that projections use.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.base.errors import StrategyError
from perfmodel.base.precisions import ALIASES
from perfmodel.compute.stream_catalogue import StreamWork, elementwise
from perfmodel.hwprofiles import Hardware
from perfmodel.workloads.formats.aiob import AiobFile, AiobTime
from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.computation_regions import (
    FlashAttention,
    GroupedProduct,
    Product,
    Region,
    timed_regions,
)
from perfmodel.workloads.twins.aicb.parameters import layers_of_stage, total_parameters

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
