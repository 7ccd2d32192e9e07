"""Attention as serving frameworks call it: the small kernels beside it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.compute.attention_calls import Call, small_kernels
from perfmodel.kernels.attention.tiles import visited_tiles
from perfmodel.measured.kinds.attention import unmasked_pairs


@given(
    st.integers(1, 60),
    st.integers(0, 60),
    st.sampled_from([0, 1, 5, 33, 200]),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_unmasked_pairs_of_causal_masks_are_exact(queries, cached, window):
    keys = queries + cached
    assert unmasked_pairs(queries, keys, True, window) == visited_tiles(
        queries, keys, 1, 1, True, window
    )
    assert unmasked_pairs(queries, keys, False, 0) == queries * keys


def test_kernels_beside_attention_follow_the_framework():
    call = Call("sglang", "fa3", "decode", "bf16", False, True, 4, 1, 32, 8, 128, 128)
    append = small_kernels(call)
    assert append == (1.0, 2 * 4 * 8 * 256 * 2)  # read and write keys and values of 4 tokens
    assert small_kernels(call._replace(width_qk=192)).launches == 5.0
    narrow = call._replace(kv_precision="fp8")
    assert small_kernels(narrow).launches == 3.0
    assert small_kernels(narrow._replace(kernel="trtllm_mha")).launches == 6.0
    assert small_kernels(narrow._replace(kernel="triton")).launches == 2.0
    assert small_kernels(call._replace(causal=False)) == (0.0, 0.0)


def test_only_flashinfers_prefill_for_blackwell_is_planned_on_the_device() -> None:
    call = Call("sglang", "flashinfer", "fwd", "bf16", False, True, 4, 64, 32, 8, 128, 128)
    assert small_kernels(call).launches == 1
    assert small_kernels(call._replace(planned=True)).launches == 4


def test_vllm_launches_more_beside_flashinfer_with_a_narrow_cache() -> None:
    call = Call(
        "vllm", "vllm_flashinfer_fidecode", "decode", "fp8", False, True, 4, 1, 8, 8, 128, 128
    )
    assert small_kernels(call).launches == 4
    trtllm = call._replace(kernel="vllm_flashinfer_trtllmdecode")
    assert small_kernels(trtllm).launches == 1
