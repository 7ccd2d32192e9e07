"""Published times of sparse attention and of indexers: none of them was used to fit anything.

The kernels' constants are those of dense attention, so these rows say how far a prior carries.
Bounds are what is found, rounded up; docs/kernels.md says where the rest comes from.
"""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.compute.sparse_attention import indexer_times, sparse_attention_times

# Dao-AILab/flash-attention pull request 2621: B200, 4,096 queries on 32,768 keys, K = V
# NVIDIA/cudnn-frontend pull request 318: B200, 4,096 tokens, K = V, fp32 atomic dKV
# InternLM/lmdeploy pull request 4904: H200, FlashMLA, 8 heads, which it pads to 64
# device, phase, queries, keys, heads, width of a query, chosen keys, measured [s]
ATTENTION = [
    ("dgx-b200", "forward", 4096, 32768, 128, 512, 2048, 1.865e-3),
    ("dgx-b200", "backward", 4096, 32768, 128, 512, 2048, 6.70e-3),
    ("dgx-h200", "forward", 2119, 2119, 8, 576, 2048, 1.057e-3),
    ("dgx-b200", "backward", 4096, 4096, 64, 512, 128, 0.560e-3),
    ("dgx-b200", "backward", 4096, 4096, 64, 512, 512, 1.233e-3),
    ("dgx-b200", "backward", 4096, 4096, 64, 512, 1024, 2.155e-3),
    ("dgx-b200", "backward", 4096, 4096, 64, 512, 2048, 4.019e-3),
    ("dgx-b200", "backward", 4096, 4096, 128, 512, 128, 1.066e-3),
    ("dgx-b200", "backward", 4096, 4096, 128, 512, 512, 2.424e-3),
    ("dgx-b200", "backward", 4096, 4096, 128, 512, 1024, 4.303e-3),
]

# ROCm/aiter pull request 5434: MI355X, 32 heads of 128 in fp8, logits alone
# phase, sequences, queries, keys, measured [s]
LOGITS = [
    ("forward", 1, 1024, 4096, 32.44e-6),
    ("forward", 1, 1024, 16384, 117.63e-6),
    ("forward", 1, 1024, 65664, 558.22e-6),
    ("forward", 1, 1024, 131072, 1072.25e-6),
    ("forward", 1, 2048, 4096, 53.25e-6),
    ("forward", 1, 2048, 16384, 223.62e-6),
    ("forward", 1, 2048, 65664, 1084.19e-6),
    ("decode", 1, 1, 4096, 3.83e-6),
    ("decode", 1, 1, 131072, 4.88e-6),
    ("decode", 16, 1, 16384, 8.53e-6),
    ("decode", 16, 1, 65664, 26.63e-6),
]

# flashinfer-ai/flashinfer pull request 5312: B300, choice of 512, best of its kernels
# sequences, keys, measured [s]
CHOICES = [
    (1, 4096, 3.2e-6),
    (1, 16384, 5.0e-6),
    (1, 65536, 6.1e-6),
    (16, 4096, 3.8e-6),
    (16, 16384, 5.4e-6),
    (16, 65536, 7.1e-6),
    (64, 4096, 3.8e-6),
    (64, 16384, 5.4e-6),
    (64, 65536, 7.9e-6),
]


# NVIDIA/cudnn-frontend pull request 730, a comment: B200, 8,192 queries on 4,096 keys, 64 heads
# of 128, gradients alone; here as two sequences of 4,096 queries
# keys chosen, measured [s]
GRADIENTS = [(128, 169e-6), (256, 274e-6), (512, 484e-6)]


def attention_error(device, phase, queries, keys, heads, width, selected, measured):
    found = sparse_attention_times(
        device,
        "bf16",
        batch=1,
        query_length=queries,
        key_length=keys,
        heads=heads,
        head_dim_qk=width,
        head_dim_v=512,
        selected=selected,
        phase=phase,
    )
    return found.time[0] / measured - 1.0


def logits_error(phase, batch, queries, keys, measured):
    found = indexer_times(
        "mi355x-server",
        batch=batch,
        query_length=queries,
        key_length=keys,
        heads=32,
        head_dim=128,
        top_k=keys,
        phase=phase,
    )
    return (found.time - found.choice_time)[0] / measured - 1.0


def choice_error(batch, keys, measured):
    indexer = {"heads": 32, "head_dim": 128, "top_k": 512, "phase": "decode"}
    found = indexer_times("dgx-b300", batch=batch, query_length=1, key_length=keys, **indexer)
    return found.choice_time[0] / measured - 1.0


def gradient_error(chosen, measured):
    indexer = {"heads": 64, "head_dim": 128, "top_k": chosen, "phase": "backward"}
    found = indexer_times("dgx-b200", batch=2, query_length=4096, key_length=4096, **indexer)
    return found.time[0] / measured - 1.0


@pytest.mark.parametrize(
    ("rows", "error", "median", "worst"),
    [
        (ATTENTION, attention_error, 0.2, 0.45),
        (LOGITS[:7], logits_error, 0.15, 0.30),
        # a launch of 4 us, the profile's prior, is longer than the shortest of these
        (LOGITS[7:], logits_error, 1.0, 1.0),
        (CHOICES, choice_error, 0.15, 0.80),
        (GRADIENTS, gradient_error, 0.2, 0.4),
    ],
    ids=["attention", "logits", "logits at decode", "choice", "gradients"],
)
def test_published_times(rows, error, median, worst):
    errors = np.abs([error(*row) for row in rows])
    assert np.median(errors) < median
    assert errors.max() < worst


def test_prefill_of_flashmla_stays_below_what_it_reaches_at_most():
    # README of deepseek-ai/FlashMLA: up to 640 TFLOP/s on H800, up to 1,450 on B200
    for device, most in (("hgx-h800", 640e12), ("dgx-b200", 1450e12)):
        found = sparse_attention_times(
            device,
            "bf16",
            batch=1,
            query_length=4096,
            key_length=131072,
            heads=128,
            head_dim_qk=576,
            head_dim_v=512,
            selected=2048,
        )
        assert 0.65 * most < found.flops[0] / found.time[0] < most
