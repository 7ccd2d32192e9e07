"""Closed forms: anchors of the reference run d18, shapes of attentions, footprints."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.model.presets import load_model
from perfmodel.wafer.twin.components import attention_components, footprints, layer_components
from perfmodel.wafer.twin.facts import generator_model
from perfmodel.wafer.twin.setting import Iteration
from tests.wafer.twin.examples import ITERATIONS, LATENT, LLAMA, system

DEEPSEEK = generator_model(load_model("deepseek-v3"))
WAFER = system(56, data_parallel=7, tensor_parallel=4, sequence_parallel=2, shared_copies=4)
# huawei-csl/wse-workload-generator 85e1ae7, batch 1024, context 2048, fp16: node 0, sum of 56.
MACS = {
    "attn.wkv_a": (606_928_896, 33_822_867_456),
    "attn.mla_absorb": (5_240_782_848, 292_057_776_128),
    "attn.wo": (4_315_938_816, 240_518_168_576),
}


def parts(iteration, layer=""):
    found = layer_components(iteration, layer) if layer else attention_components(iteration)
    return {part.name: part for part in found}


def test_anchors_of_the_default_example():
    found = parts(Iteration(DEEPSEEK, WAFER, 1024, 1, 2048))
    for name, (first, total) in MACS.items():
        assert (found[name].macs[0], found[name].macs.sum()) == (first, total)
    cache = found["attn.mla_absorb"].weights
    assert (cache[0], cache.sum()) == (173_408_256, 9_663_676_416)
    assert found["attn.allreduce_sp"].sent[0] == 4_816_896
    assert found["attn.allreduce_tp"].sent[0] == 2_107_392


def test_prefill_is_naive_without_cache_or_causal_half():
    found = parts(Iteration(LATENT, system(2, sequence_parallel=2), 3, 5))
    assert "attn.mla_absorb" not in found
    naive = found["attn.mla_naive"]
    assert (naive.macs == 3 * 3 * 4 * (4 + 2 + 4) * 5).all()
    assert (naive.weights == 0).all()


def test_keys_of_few_heads_are_held_on_every_tensor_rank():
    found = parts(Iteration(LLAMA, system(8, tensor_parallel=8), 3, 1, 10))
    assert found["attn.k_proj"].weights == 2 * 32 * 4
    assert (found["attn.gqa"].weights == 2 * 2 * 3 * 10 * 1 * 4).all()


def test_head_is_reduced_where_a_gather_would_do():
    found = parts(ITERATIONS["llama"], "lm_head")
    width = -(-51 // 6)
    assert (found["lm_head.head"].macs == 4 * 32 * width).all()
    assert (found["lm_head.allreduce"].sent == 4 * width * 2).all()


@pytest.mark.parametrize("precision", ["fp16", "fp8"])
def test_bytes_follow_the_precision(precision):
    iteration = Iteration(LATENT, system(4, tensor_parallel=4), 3, 1, 9, precision)
    assert parts(iteration, "decode0")["dense_ffn"].weights == 3 * 16 * 6 * iteration.element


def test_footprints_count_experts_that_are_not_used():
    every = Iteration(LATENT, ITERATIONS["clusters"].system, 7, 1, 9)
    held = footprints(every, 12)
    # 12 experts on 8 nodes: two on the first four; shared ones on nodes 0 and 4.
    expert = 2 * 2 * 3 * 16 * 10
    cache = 3 * 6 * (6 + 2) * 2  # of the sequence that clusters differ in
    assert np.diff(held).tolist() == [-expert, 0, 0, -cache, -expert, 0, 0]
    assert footprints(Iteration(LATENT, every.system, 7, 1, 9, layers=("lm_head",)), 12).sum() == 0
    longer = footprints(every, 14)
    assert (longer - held == 3 * every.local_batch * (6 + 2) * 2).all()
