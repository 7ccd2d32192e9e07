"""Kernels as plain Python where others are compiled."""

import os
import subprocess
import sys
from types import FunctionType

import pytest

from perfmodel.kernels import _jit, stream
from perfmodel.kernels.attention import backward as calls
from perfmodel.kernels.uncompiled import uncompiled

TWICE = """
import numpy as np
from perfmodel import attention_times, collective_times, load_hardware
from perfmodel.kernels import _jit

hardware = load_hardware("dgx-h100")
sizes = 2.0 ** np.arange(10, 34)

def found():
    yield collective_times(hardware, "all_reduce", sizes, 16)
    yield collective_times(hardware, "all_to_all", sizes, 64, 8, protocol="simple")
    lengths = 2 ** np.arange(7, 15)
    yield attention_times(hardware, "bf16", 1, lengths, lengths, 32, 8, 128, 128).time

before = [times.tobytes() for times in found()]
_jit.compile_kernels()
assert [times.tobytes() for times in found()] == before
from perfmodel.kernels.attention import columns
from perfmodel.kernels.collective import times
assert not columns.attention_times.signatures + times.collective_choices.signatures
"""


@pytest.mark.skipif(_jit.mode() == "never", reason="nothing is compiled")
def test_answers_are_the_same_before_and_after_the_choice():
    environment = os.environ | {"PERFMODEL_JIT": "auto", "NUMBA_DISABLE_JIT": "0"}
    subprocess.run([sys.executable, "-c", TWICE], check=True, env=environment)


def test_an_uncompiled_kernel_calls_plain_ones():
    kernel = uncompiled(stream.stream_times)
    assert type(kernel) is FunctionType
    assert type(kernel.__globals__["stream_time"]) is FunctionType
    assert kernel.__globals__["stream_time"] is uncompiled(stream.stream_time)


def test_a_memoised_kernel_stays_so():
    memoised = {name: value for name, value in vars(calls).items() if _is_memoised(value)}
    assert memoised
    for kernel in memoised.values():
        assert hasattr(uncompiled(kernel), "cache_info")


def _is_memoised(value):
    function = getattr(value, "py_func", getattr(value, "__wrapped__", None))
    return function is not None and _jit.is_memoised(function)
