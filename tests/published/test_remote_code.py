"""Files of models whose code is not in transformers, against the counts that the Hub shows.

"safetensors" is the count of distinct parameters on the model's Hugging Face page.
"""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.model.presets import load_model

FILES: dict[str, tuple[int, dict[str, Any]]] = {
    "internlm/internlm2-7b": (
        7_737_708_544,  # safetensors
        {
            "model_type": "internlm2",
            "bias": False,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "vocab_size": 92544,
        },
    ),
    "openbmb/MiniCPM-2B-sft-bf16": (
        2_724_880_896,  # safetensors
        {
            "model_type": "minicpm",
            "hidden_size": 2304,
            "intermediate_size": 5760,
            "num_attention_heads": 36,
            "num_hidden_layers": 40,
            "num_key_value_heads": 36,
            "vocab_size": 122753,
        },
    ),
    "apple/OpenELM-270M": (
        271_527_168,  # safetensors
        {
            "model_type": "openelm",
            "ffn_dim_divisor": 256,
            "ffn_multipliers": [
                *(0.5, 0.73, 0.97, 1.2, 1.43, 1.67, 1.9, 2.13),
                *(2.37, 2.6, 2.83, 3.07, 3.3, 3.53, 3.77, 4.0),
            ],
            "ffn_with_glu": True,
            "head_dim": 64,
            "model_dim": 1280,
            "normalize_qk_projections": True,
            "num_kv_heads": [3] * 5 + [4] * 7 + [5] * 4,
            "num_query_heads": [12] * 5 + [16] * 7 + [20] * 4,
            "num_transformer_layers": 16,
            "share_input_output_layers": True,
            "vocab_size": 32000,
        },
    ),
    "Qwen/Qwen-7B": (
        7_721_324_544,  # safetensors
        {
            "model_type": "qwen",
            "hidden_size": 4096,
            "intermediate_size": 22016,
            "kv_channels": 128,
            "no_bias": True,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "vocab_size": 151936,
        },
    ),
    "microsoft/phi-2, its first revision": (
        2_779_683_840,  # safetensors
        {
            "model_type": "phi-msft",
            "n_embd": 2560,
            "n_head": 32,
            "n_inner": None,
            "n_layer": 32,
            "n_positions": 2048,
            "vocab_size": 51200,
        },
    ),
    "MiniMaxAI/MiniMax-Text-01": (
        456_089_655_296,  # safetensors
        {
            "model_type": "minimax_text_01",
            "attn_type_list": ([0] * 7 + [1]) * 10,
            "head_dim": 128,
            "hidden_size": 6144,
            "intermediate_size": 9216,
            "num_attention_heads": 64,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 80,
            "num_key_value_heads": 8,
            "num_local_experts": 32,
            "shared_intermediate_size": 0,
            "vocab_size": 200064,
        },
    ),
    "tencent/Hunyuan-A13B-Instruct": (
        80_393_183_232,  # safetensors
        {
            "model_type": "hunyuan",
            "attention_head_dim": 128,
            "hidden_size": 4096,
            "intermediate_size": 3072,
            "moe_intermediate_size": [3072] * 32,
            "moe_topk": [8] * 32,
            "num_attention_heads": 32,
            "num_experts": 64,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "num_shared_expert": [1] * 32,
            "tie_word_embeddings": True,
            "use_cla": False,
            "use_qk_norm": True,
            "vocab_size": 128167,
        },
    ),
    "XiaomiMiMo/MiMo-7B-Base": (
        7_833_409_536,  # safetensors, with the module for multi-token prediction
        {
            "model_type": "mimo",
            "attention_bias": True,
            "head_dim": 128,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_attention_heads": 32,
            "num_hidden_layers": 36,
            "num_key_value_heads": 8,
            "num_nextn_predict_layers": 1,
            "vocab_size": 151680,
        },
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_parameter_count_is_the_published_one(name: str) -> None:
    total, config = FILES[name]
    assert load_model(config, mtp="stated").parameter_count() == total


@pytest.mark.parametrize(
    ("model_type", "keys", "message"),
    [
        ("nemotron-nas", {"block_configs": [{}]}, "'block_configs': layers of searched widths"),
        ("phi3small", {"ff_intermediate_size": 14336}, "'ff_intermediate_size': block-sparse"),
        ("plamo", {"n_shared_head": 8}, "'n_shared_head': how heads share keys"),
        ("hunyuan", {"use_cla": True}, "'use_cla': layers that share keys"),
    ],
)
def test_what_is_not_modelled_is_refused(
    model_type: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load_model({"model_type": model_type, **keys})
