"""Parameters of every preset against the counts that its authors publish."""

from __future__ import annotations

import pytest

from perfmodel.model.layers import layer_parameters
from perfmodel.model.presets import load_model
from tests.data import table_of

# Exact totals. "safetensors" is the count of distinct parameters that the model's Hugging
# Face page shows, or half the total_size (bytes in bf16) of model.safetensors.index.json.
PUBLISHED = {
    **table_of(__file__, "published"),
    # Totals as published, carried from memory and not looked up again: keys and count agree to
    # the last digit. "+" is the correction of routers, which checkpoints hold as a buffer.
    "lfm2-8b-a1b": 8_339_929_856 + 22 * 32,  # LiquidAI/LFM2-8B-A1B
    "glm-4.5": 352_797_814_784 + 89 * 160,  # transformers 5.23 on the meta device
    "glm-4.5-air": 106_852_245_504 + 45 * 128,  # transformers 5.23 on the meta device
    "glm-5": 743_911_199_232 + 75 * 256,  # transformers 5.23 on the meta device
    "deepseek-v3.2": 671_877_929_216 + 58 * 256,  # DeepseekV32ForCausalLM
    "kimi-k2.5": 1_026_408_209_408 + 60 * 384,  # language model of Kimi_K25
}

# Rounded figures, with half a unit of their last digit [billions].
ROUNDED = table_of(__file__, "rounded")

# Active parameters: figure, tolerance [billions], whether the input table counts.
ACTIVE = table_of(__file__, "active")


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_count_is_the_published_one(name: str) -> None:
    assert load_model(name).parameter_count() == PUBLISHED[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_parameter_count_rounds_to_the_published_figure(name: str) -> None:
    figure, tolerance = ROUNDED[name]
    assert load_model(name).parameter_count() / 1e9 == pytest.approx(figure, abs=tolerance)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameter_count_rounds_to_the_published_figure(name: str) -> None:
    figure, tolerance, embeddings = ACTIVE[name]
    count = load_model(name).active_parameter_count(include_embeddings=embeddings)
    assert count / 1e9 == pytest.approx(figure, abs=tolerance)


def test_gpt_oss_20b_split_of_table_1() -> None:
    """Table 1 of arXiv:2508.10925 splits 20.91B into MLP, attention and embeddings."""
    model = load_model("gpt-oss-20b")
    parts = [layer_parameters(layer, model.hidden_size) for layer in model.layers]
    mlp = sum(part.experts + part.router for part in parts)
    attention = sum(part.attention for part in parts)
    tables = model.embedding_parameters() + model.output_parameters()
    assert mlp / 1e9 == pytest.approx(19.12, abs=0.005)  # arXiv:2508.10925, table 1: MLP 19.12B
    assert attention / 1e9 == pytest.approx(0.64, abs=0.005)  # table 1: attention 0.64B
    assert tables / 1e9 == pytest.approx(1.16, abs=0.005)  # table 1: embed + unembed 1.16B


def test_deepseek_v3_by_hand() -> None:
    """Every matrix of DeepSeek-V3 (arXiv:2412.19437, section 4.2), added up by hand."""
    h = 7168
    query = h * 1536 + 1536 + 1536 * 128 * 192
    key_value = h * (512 + 64) + 512 + 512 * 128 * (128 + 128)
    attention = query + key_value + 128 * 128 * h
    dense = 3 * h * 18432
    expert = 3 * h * 2048
    sparse = 257 * expert + 256 * h + 256  # 256 routed, 1 shared, router, correction bias
    norms = 2 * h
    tables = 2 * 129280 * h
    main = 61 * (attention + norms) + 3 * dense + 58 * sparse + h + tables
    module = attention + norms + sparse + 2 * h * h + 3 * h  # section 2.2
    model = load_model("deepseek-v3")
    assert model.parameter_count() == main == 671_026_419_200
    stated = load_model("deepseek-v3", mtp="stated")
    assert stated.parameter_count() == main + module
    assert (model.mtp_parameters(), stated.mtp_parameters()) == (0, module)
    idle = 248 * expert
    assert model.active_parameter_count() == main - 58 * idle
    assert stated.active_parameter_count() == main + module - 59 * idle


# Checkpoints hold the module with a copy of token table and output matrix.
WITH_MTP = {
    "glm-4.5": (358_337_791_296, 2),  # safetensors of zai-org/GLM-4.5
    "glm-4.5-air": (110_468_824_832, 2),  # safetensors of zai-org/GLM-4.5-Air
    "glm-5": (753_864_139_008, 0),  # safetensors of zai-org/GLM-5, which has no copies
    "glm-4.7-flash": (31_221_488_576, 2),  # safetensors of zai-org/GLM-4.7-Flash
}


@pytest.mark.parametrize("name", WITH_MTP)
def test_parameter_count_with_the_mtp_module_is_the_published_one(name: str) -> None:
    total, copies = WITH_MTP[name]
    model = load_model(name, mtp="stated")
    assert model.parameter_count() + copies * model.vocab_size * model.hidden_size == total


def test_bloom_embedding_parameters() -> None:
    model = load_model("bloom")
    table = model.embedding_parameters() - 2 * model.hidden_size  # without the norm behind it
    assert table == 3_596_615_680  # model card of bigscience/bloom: 3,596,615,680 embedding


def test_gemma_3_4b_with_its_vision_part_is_the_published_checkpoint() -> None:
    vision = 416_866_032  # SigLIP So400m/14 at 896 pixels without head, arXiv:2503.19786: 417M
    projector = 1152 * 2560 + 1152  # projection and norm of Gemma3MultiModalProjector
    total = load_model("gemma-3-4b").parameter_count() + vision + projector
    assert total == 4_300_079_472  # safetensors of google/gemma-3-4b-pt


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("qwen3-vl-8b", 8_767_123_696),  # safetensors of Qwen/Qwen3-VL-8B-Instruct
        ("qwen3-vl-30b-a3b", 31_070_754_032),  # safetensors of Qwen/Qwen3-VL-30B-A3B-Instruct
        ("qwen2.5-vl-7b", 8_292_166_656),  # safetensors of Qwen/Qwen2.5-VL-7B-Instruct
        ("qwen2.5-vl-72b", 73_410_777_344),  # safetensors of Qwen/Qwen2.5-VL-72B-Instruct
        # safetensors of mistralai/Mistral-Small-3.1-24B-Instruct-2503
        ("mistral-small-3.1-24b", 24_011_361_280),
        # safetensors of meta-llama/Llama-4-Scout-17B-16E-Instruct, and of Maverick-17B-128E
        ("llama-4-scout", 108_641_793_536),
        ("llama-4-maverick", 401_583_781_376),
    ],
)
def test_a_language_model_and_its_tower_are_the_published_checkpoint(
    name: str, published: int
) -> None:
    model = load_model(name)
    assert model.parameter_count() + model.towers[0].parameter_count() == published


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("glm-4.5", 358_337_791_296),  # safetensors of zai-org/GLM-4.5
        ("glm-4.5-air", 110_468_824_832),  # safetensors of zai-org/GLM-4.5-Air
    ],
)
def test_a_checkpoint_holds_the_tables_once_more_for_its_module(name: str, published: int) -> None:
    model = load_model(name, mtp="stated")
    tables = model.embedding_parameters() + model.output_parameters()
    assert model.parameter_count() + tables == published


def test_glm_5_with_its_module_is_the_published_checkpoint() -> None:
    # safetensors of zai-org/GLM-5: 753,864,139,008.
    assert load_model("glm-5", mtp="stated").parameter_count() == 753_864_139_008


def test_sliding_layers_stand_where_the_reports_say() -> None:
    gemma3 = [layer.attention.window for layer in load_model("gemma-3-27b").layers]
    assert gemma3[:6] == [1024] * 5 + [0]  # arXiv:2503.19786, section 2: five local to one global
    gemma2 = [layer.attention.window for layer in load_model("gemma-2-9b").layers]
    assert gemma2[:2] == [4096, 0]  # arXiv:2408.00118, section 2: every other layer local
    oss = [layer.attention.window for layer in load_model("gpt-oss-20b").layers]
    assert oss[:2] == [128, 0]  # config.json of openai/gpt-oss-20b, layer_types
