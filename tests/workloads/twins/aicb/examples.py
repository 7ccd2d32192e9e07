"""AICB's own example of a computation file."""

from __future__ import annotations

from perfmodel.workloads.formats.aiob import parse_aiob

# Sums as of AICB's Example.txt (23eec3c4): attention 70 + 889 + 512 + 349 = 1820 µs, of which
# flash 512; MLP 71 + 1408 + 257 + 742 = 2478 µs; the optimizer's pass 16647 and 17374 µs.
AIOB = """train_iter:10
Emb:
    time_gpu_max: 857
    time_gpu_min: 782
    time_gpu_avg: 799
layernorm:
    time_gpu_max: 84
    time_gpu_min: 43
    time_gpu_avg: 70
atten_qkv:
    time_gpu_max: 1255
    time_gpu_min: 862
    time_gpu_avg: 1238
atten_flash:
    time_gpu_max: 786
    time_gpu_min: 460
    time_gpu_avg: 512
layernorm2:
    time_gpu_max: 116
    time_gpu_min: 67
    time_gpu_avg: 71
mlp_linear_1:
    time_gpu_max: 3000
    time_gpu_min: 1372
    time_gpu_avg: 2407
logit_time:
    time_gpu_max: 15476
    time_gpu_min: 12435
    time_gpu_avg: 12824
param_time:
    time_gpu_max: 23746
    time_gpu_min: 16647
    time_gpu_avg: 17374
"""
COMPUTATION = parse_aiob(AIOB)
