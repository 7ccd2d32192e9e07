"""Families of ``config.json``: which function turns its keys into a `ModelSpec`.

A function carries the defaults of the Hugging Face configuration class of the same
``model_type``, for keys that a published file leaves out. A new family is a function in a
file of its kin and a row here.
"""

from __future__ import annotations

from collections.abc import Callable

from perfmodel.model.config_keys import ConfigKeys
from perfmodel.model.families import deepseek, gemma, gpt, llama, qwen
from perfmodel.model.spec import ModelSpec

Family = Callable[[ConfigKeys], ModelSpec]

# model_type, architecture, function
_ROWS: tuple[tuple[str, str, Family], ...] = (
    ("llama", "LlamaForCausalLM", llama.llama),
    ("mistral", "MistralForCausalLM", llama.mistral),
    ("mixtral", "MixtralForCausalLM", llama.mixtral),
    ("qwen2", "Qwen2ForCausalLM", qwen.qwen),
    ("qwen3", "Qwen3ForCausalLM", qwen.qwen),
    ("qwen2_moe", "Qwen2MoeForCausalLM", qwen.qwen2_moe),
    ("qwen3_moe", "Qwen3MoeForCausalLM", qwen.qwen3_moe),
    ("deepseek_v2", "DeepseekV2ForCausalLM", deepseek.deepseek),
    ("deepseek_v3", "DeepseekV3ForCausalLM", deepseek.deepseek),
    ("kimi_k2", "KimiK2ForCausalLM", deepseek.deepseek),
    ("gpt_oss", "GptOssForCausalLM", deepseek.gpt_oss),
    ("minimax_m2", "MiniMaxM2ForCausalLM", deepseek.minimax_m2),
    ("gpt2", "GPT2LMHeadModel", gpt.gpt2),
    ("gptj", "GPTJForCausalLM", gpt.gptj),
    ("gpt_neox", "GPTNeoXForCausalLM", gpt.gpt_neox),
    ("bloom", "BloomForCausalLM", gpt.bloom),
    ("opt", "OPTForCausalLM", gpt.opt),
    ("mpt", "MPTForCausalLM", gpt.mpt),
    ("nemotron", "NemotronForCausalLM", llama.nemotron),
    ("gemma", "GemmaForCausalLM", gemma.gemma),
    ("gemma2", "Gemma2ForCausalLM", gemma.gemma),
    ("gemma3_text", "Gemma3ForCausalLM", gemma.gemma3),
    ("gemma3", "Gemma3ForConditionalGeneration", gemma.gemma3),
)

FAMILIES = {model_type: function for model_type, _, function in _ROWS}
"""``model_type`` -> function."""

ARCHITECTURES = {architecture: model_type for model_type, architecture, _ in _ROWS}
"""Entry of ``architectures`` -> ``model_type``."""
