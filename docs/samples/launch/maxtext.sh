#!/bin/bash
# What XLA is told changes nothing here.
export LIBTPU_INIT_ARGS="--xla_enable_async_all_gather=true TPU_MEGACORE=MEGACORE_DENSE"
BATCH=${BATCH:-2}
python3 -m maxtext.trainers.pre_train.train src/maxtext/configs/base.yml \
    model_name=llama3.1-8b per_device_batch_size=${BATCH} max_target_length=8192 \
    ici_fsdp_parallelism=-1 dcn_data_parallelism=1 remat_policy=full \
    dataset_type=synthetic steps=30 run_name=$USER-run
