#!/bin/bash
# Hugging Face's Trainer on two nodes; zero3.json lies beside it
deepspeed --num_nodes 2 --num_gpus 8 finetune.py \
    --deepspeed zero3.json \
    --model_name_or_path meta-llama/Llama-3.1-8B \
    --per_device_train_batch_size 4 \
    --gradient_accumulation_steps 8 \
    --model_max_length 4096 \
    --gradient_checkpointing True \
    --bf16 True --fp16 False --tf32 True \
    --learning_rate 2e-5 --num_train_epochs 1
