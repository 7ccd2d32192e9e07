"""Runs of Korthikanti et al. 2022, table 5, as a measured table."""

from __future__ import annotations

# Korthikanti et al. 2022 (arXiv:2205.05198), Table 5: seconds per iteration on A100 80 GB with
# full recompute and no sequence parallelism ("Baseline"), and with both present techniques.
KORTHIKANTI_TABLE_5 = """\
family,hardware,n_gpus,model,layers,hidden,ffn,gated_mlp,heads,vocab,seq,precision,framework,version,\
tp,pp,vpp,sequence_parallel,recompute,mbs,gbs,flash,meas_iter_s
Korthikanti,A100-80GB-SXM,8,GPT-22B,48,6144,24576,0,64,51200,2048,fp16,Megatron-LM,2022-05,\
8,1,1,no,full,4,4,no,1.42
Korthikanti,A100-80GB-SXM,8,GPT-22B,48,6144,24576,0,64,51200,2048,fp16,Megatron-LM,2022-05,\
8,1,1,yes,selective,4,4,no,1.10
Korthikanti,A100-80GB-SXM,64,GPT-175B,96,12288,49152,0,96,51200,2048,fp16,Megatron-LM,2022-05,\
8,8,3,no,full,1,64,no,18.13
Korthikanti,A100-80GB-SXM,64,GPT-175B,96,12288,49152,0,96,51200,2048,fp16,Megatron-LM,2022-05,\
8,8,3,yes,selective,1,64,no,13.75
Korthikanti,A100-80GB-SXM,280,GPT-530B,105,20480,81920,0,128,51200,2048,fp16,Megatron-LM,2022-05,\
8,35,3,no,full,1,280,no,49.05
Korthikanti,A100-80GB-SXM,280,GPT-530B,105,20480,81920,0,128,51200,2048,fp16,Megatron-LM,2022-05,\
8,35,3,yes,selective,1,280,no,37.83
Korthikanti,A100-80GB-SXM,512,GPT-1T,128,25600,102400,0,160,51200,2048,fp16,Megatron-LM,2022-05,\
8,64,1,no,full,1,512,no,94.42
Korthikanti,A100-80GB-SXM,512,GPT-1T,128,25600,102400,0,160,51200,2048,fp16,Megatron-LM,2022-05,\
8,64,1,yes,selective,1,512,no,71.49
"""
