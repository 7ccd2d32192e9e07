"""Fine-tuning as a row of a table of measured runs states it: adapters, and packed documents.

What a row leaves open is as the recipe of its software has it, each with its source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from perfmodel.measured.row_software import software_of
from perfmodel.measured.rows import MeasuredRow
from perfmodel.model.adapters import WORDS, AdapterSpec
from perfmodel.model.build import ModelSpec


class Recipe(NamedTuple):
    """Adapters of a recipe, and how long the documents are that it packs (0: as sequences)."""

    rank: int
    targets: tuple[str, ...]
    document_length: int = 0


SQUAD_TOKENS = 256
"""Tokens of the document of SQuAD in which a token stands on average [1]: an estimate.

Paragraphs of 117 words on average (23,215 of them, arXiv:1606.05250), with question, answer and
template; attention within them is so little that neither half nor twice as many would show."""

RECIPES: Mapping[str, Recipe] = {
    # Megatron-Bridge, recipes/llama: dim 16; perf_recipes/llama: target_modules linear_qkv,
    # packed_sequence_size as long as the sequence, of SQuAD ("packed sequence length" in the
    # tables of NVIDIA's performance summaries, of fine-tuning whole models as well).
    "megatron-bridge": Recipe(16, ("linear_qkv",), SQUAD_TOKENS),
    # NeMo 24.07, megatron_gpt_finetuning_config.yaml: adapter_dim 32, attention_qkv; from 2.0 on
    # recipes/llama3_8b.py: dim 8, finetune_performance_optimizations: linear_qkv.
    "nemo": Recipe(32, ("linear_qkv",), SQUAD_TOKENS),
    # MLPerf Training's benchmark: rank 16 on the projections of attention, documents of 8,192
    # tokens (training_policies, llama2_70b_lora).
    "nvidia-mlperf": Recipe(16, ("attention",)),
}
OTHERWISE = Recipe(16, ("all_linear",))
"""QLoRA's choice (arXiv:2305.14314, section 4), transformers' for quantised models."""


def tuned(row: MeasuredRow, model: ModelSpec) -> tuple[ModelSpec, dict[str, Any], tuple[str, ...]]:
    """Return the model with the adapters of a row, its documents, and what was assumed.

    Parameters
    ----------
    row : MeasuredRow
    model : ModelSpec
        As trained whole; returned so where the row is no LoRA.
    """
    task = row.lower("task")
    if task not in ("lora", "sft"):
        return model, {}, ()
    name, _ = software_of(row)
    recipe = RECIPES.get(name.partition("@")[0], OTHERWISE)
    strategy: dict[str, Any] = {}
    packed: tuple[str, ...] = ()
    if recipe.document_length and (row.whole("seq") or 0) > recipe.document_length:
        strategy["document_length"] = recipe.document_length
        packed = (f"document_length={recipe.document_length}",)
    if task == "sft":
        return model, strategy, packed
    notes = f"{row.lower('model')} {row.lower('notes')}"
    stated = re.search(r"lora (?:dim|rank|r) ?=?(\d+)|\br(\d+)\b|(?:dim|rank) ?=?(\d+)", notes)
    rank = int(next(filter(None, stated.groups()))) if stated else recipe.rank
    words = re.findall(r"\w+", row.lower("notes"))
    targets = tuple(word for word in WORDS if "_" in word and word in words)
    adapters = AdapterSpec(rank, targets or recipe.targets)
    assumed = [] if stated else [f"lora_rank={rank}"]
    assumed += [] if targets else [f"lora_targets={'+'.join(adapters.targets)}"]
    return model.with_adapters(adapters), strategy, (*assumed, *packed)
