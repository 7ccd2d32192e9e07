"""Launches to write and read: many strategies of several models, and what has to come back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from perfmodel.base.errors import StrategyError
from perfmodel.launch.describe import Launch, settled
from perfmodel.launch.software import format_launch, parse_launch, prepared
from perfmodel.model.presets import load_model
from perfmodel.model.spec import ModelSpec
from perfmodel.software.framework import load_framework
from perfmodel.strategy.enumerate import enumerate_strategies, strategies_from_rows
from perfmodel.strategy.grid import StrategyGrid

MEGATRON = """\
torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --bf16 --micro-batch-size 1
  --global-batch-size 64 --seq-length 4096 --pipeline-model-parallel-size 4 --num-layers 32
  --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8
  --ffn-hidden-size 14336 --vocab-size 128256 --swiglu --normalization RMSNorm
  --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope
  --max-position-embeddings 131072
""".replace("\n", " ")
BRIDGE = "model:\n  tensor_model_parallel_size: 1\n  pipeline_model_parallel_size: 4\n"
TITAN = "[model]\nname='llama3'\nflavor='8B'\n[parallelism]\npipeline_parallel_degree = 4\n"
TITAN += "data_parallel_shard_degree = 2\n"
MODELS = (
    "llama-3.1-8b",
    "llama-3.1-405b",
    "gpt3-175b",
    "mixtral-8x7b",
    "deepseek-v3",
    "qwen3-30b-a3b",
    "gpt-oss-20b",
)
AXES: dict[str, Any] = {
    "sequence_length": [4096, 8192],
    "global_batch_size": [256, 512],
    "tensor_parallel": [1, 2, 8],
    "context_parallel": [1, 2, 4],
    "context_parallel_kind": "all",
    "pipeline_parallel": [1, 2, 4, 8],
    "virtual_pipeline": [1, 2, 4, 8],
    "expert_parallel": [1, 2, 8, 16],
    "expert_tensor_parallel": [1, 2, 8],
    "micro_batch_size": [1, 2],
}
FREE: dict[str, Any] = {
    "recompute": ("none", "selective", "full"),
    "precision": ("bf16", "fp16", "fp8", "mxfp8", "nvfp4"),
    "zero_stage": (0, 1, 2, 3),
    "shard_group": (0, 0, 8, 16),
    "mapping": (
        "tensor-context-data-pipeline",
        "tensor-context-data-pipeline",
        "tensor-context-pipeline-data",
        "data-tensor-context-pipeline",
    ),
}


METHODS = ("single", "single", "uniform", "block", "every")


def launched_model(name: str, framework: str) -> ModelSpec:
    """Return a model with the prediction modules that it states, where software knows them."""
    return load_model(name, mtp="none" if framework == "torchtitan" else "stated")


def one_launch(
    model: str, framework: str = "megatron", *, devices: int, split: str = "", **axes: Any
) -> Launch:
    """Return the launch of one strategy, on nodes of 8; `split` lays out its stages."""
    if framework == "maxtext":  # which always recomputes something
        axes = {"recompute": "full"} | axes
    spec = launched_model(model, framework)
    grid = strategies_from_rows(spec, devices, [axes])
    assert grid.status[0] == 0, "no possible strategy"
    facts = {"stage_split": split} if split else {}
    return Launch(grid.row(0), load_framework(framework, **facts), spec, devices, 8, 8)


def launches(
    name: str, framework: str, count: int, devices: int = 128, **narrow: Any
) -> Iterator[Launch]:
    """Yield launches of strategies drawn from all that are possible, the same on every run.

    `narrow` gives the values of some axes, so that more of what a software can do is drawn.
    """
    axes = AXES | {key: value for key, value in narrow.items() if key in AXES}
    free = FREE | {key: value for key, value in narrow.items() if key in FREE}
    model = launched_model(name, framework)
    random, of_layers = np.random.default_rng(20261122), np.random.default_rng(17)
    layouts = enumerate_strategies(model, devices, {**axes, "zero_stage": [1]}).grid
    rows = []
    for index in random.integers(0, len(layouts), count):
        row = layouts.row(int(index))
        row |= {key: values[int(random.integers(len(values)))] for key, values in free.items()}
        if row["recompute"] == "full":
            method = of_layers.choice(narrow.get("recompute_method", METHODS))
            layers = 0 if method == "single" else int(of_layers.integers(1, 4))
            row |= {"recompute_method": str(method), "recompute_num_layers": layers}
        if row["pipeline_schedule"] == "1f1b" and random.random() < 0.3:
            row["pipeline_schedule"] = "gpipe"
        rows.append(row)
    grid: StrategyGrid = strategies_from_rows(model, devices, rows)
    software = load_framework(framework)
    for index in np.flatnonzero(grid.status == 0):
        yield Launch(grid.row(int(index)), software, model, devices, 8, 8)


def plain_model(model: ModelSpec | None) -> ModelSpec:
    """Return a model without what no launch file says: names, and the form of GELU."""
    assert model is not None

    def layer(spec: Any) -> Any:
        return replace(
            spec,
            mlps=tuple(
                replace(mlp, activation=mlp.activation.removesuffix("_tanh")) for mlp in spec.mlps
            ),
        )

    return replace(
        model,
        name="",
        family="",
        source="",
        remarks=(),
        quantization=None,
        towers=(),
        max_positions=model.max_positions if model.position_embedding == "learned" else 0,
        layers=tuple(layer(spec) for spec in model.layers),
        mtp_layers=tuple(layer(spec) for spec in model.mtp_layers),
    )


def round_trips(
    software: str, framework: str, name: str, count: int, **narrow: Any
) -> tuple[int, set[str]]:
    """Write and read launches; return how many came back, and what the others were refused for."""
    done, refused = 0, set()
    for launch in launches(name, framework, count, **narrow):
        try:
            text = format_launch(software, launch, ["a header; with 'quotes' and $VARIABLES"])
        except StrategyError as error:
            refused.add(str(error))
            continue
        found, read = parse_launch(text, "launch")
        assert found == software, text
        assert dict(read.strategy) == settled(launch.strategy, launch.model), text
        assert read.devices == launch.devices
        if read.model is not None and launch.model is not None:
            longest = max(launch.model.max_positions, launch["sequence_length"])
            # A table of learned positions has to reach as far as the sequence where it is stated.
            grown = replace(launch.model, max_positions=longest)
            assert plain_model(read.model) in (plain_model(grown), plain_model(launch.model))
        # A second time the same words.
        again = replace(read, model=launch.model, domain=launch.domain, devices_per_node=8)
        assert format_launch(software, again) == format_launch(
            software, replace(launch, framework=prepared(software, launch)[0].framework)
        )
        done += 1
    return done, refused


def split_of(text: str, software: str = "") -> tuple[int, str]:
    """Return the chunks of a stage and the layout that a text states."""
    _, launch = parse_launch(text, "launch", software)
    return launch["virtual_pipeline"], launch.framework.stage_split
