"""Parameters of every preset against the counts that its authors publish."""

from __future__ import annotations

import pytest

from perfmodel.model.layers import layer_parameters
from perfmodel.model.presets import load_model

# Exact totals. "safetensors" is the count of distinct parameters that the model's Hugging
# Face page shows, or half the total_size (bytes in bf16) of model.safetensors.index.json.
PUBLISHED = {
    "gpt2": 124_439_808,  # transformers GPT2LMHeadModel("gpt2").num_parameters()
    "gpt2-medium": 354_823_168,  # transformers GPT2LMHeadModel("gpt2-medium").num_parameters()
    "gpt2-large": 774_030_080,  # transformers GPT2LMHeadModel("gpt2-large").num_parameters()
    "gpt2-xl": 1_557_611_200,  # transformers GPT2LMHeadModel("gpt2-xl").num_parameters()
    "gpt-j-6b": 6_050_882_784,  # transformers GPTJForCausalLM("EleutherAI/gpt-j-6b")
    "bloom-176b": 176_247_271_424,  # model card of bigscience/bloom: 176,247,271,424
    "bloom-7b1": 7_069_016_064,  # model card of bigscience/bloom-7b1: 7,069,016,064
    "mpt-7b": 6_649_286_656,  # safetensors of mosaicml/mpt-7b
    "llama-2-7b": 6_738_415_616,  # safetensors of meta-llama/Llama-2-7b-hf
    "llama-2-13b": 13_015_864_320,  # safetensors of meta-llama/Llama-2-13b-hf
    "llama-2-70b": 68_976_648_192,  # safetensors of meta-llama/Llama-2-70b-hf
    "llama-3-8b": 8_030_261_248,  # safetensors of meta-llama/Meta-Llama-3-8B
    "llama-3.1-70b": 70_553_706_496,  # safetensors of meta-llama/Llama-3.1-70B
    "llama-3.1-405b": 405_853_388_800,  # safetensors of meta-llama/Llama-3.1-405B
    "llama-3.2-1b": 1_235_814_400,  # safetensors of meta-llama/Llama-3.2-1B
    "llama-3.2-3b": 3_212_749_824,  # safetensors of meta-llama/Llama-3.2-3B
    "mistral-7b": 7_241_732_096,  # safetensors of mistralai/Mistral-7B-v0.1
    "mistral-7b-v0.3": 7_248_023_552,  # safetensors of mistralai/Mistral-7B-v0.3
    "mixtral-8x7b": 46_702_792_704,  # safetensors of mistralai/Mixtral-8x7B-v0.1
    "mixtral-8x22b": 140_620_634_112,  # safetensors of mistralai/Mixtral-8x22B-v0.1
    "qwen2.5-0.5b": 494_032_768,  # safetensors of Qwen/Qwen2.5-0.5B
    "qwen2.5-1.5b": 1_543_714_304,  # safetensors of Qwen/Qwen2.5-1.5B
    "qwen2.5-3b": 3_085_938_688,  # safetensors of Qwen/Qwen2.5-3B
    "qwen2.5-7b": 7_615_616_512,  # safetensors of Qwen/Qwen2.5-7B
    "qwen2.5-14b": 14_770_033_664,  # safetensors of Qwen/Qwen2.5-14B
    "qwen2.5-32b": 32_763_876_352,  # safetensors of Qwen/Qwen2.5-32B
    "qwen2.5-72b": 72_706_203_648,  # safetensors of Qwen/Qwen2.5-72B
    "qwen3-4b": 4_022_468_096,  # safetensors of Qwen/Qwen3-4B
    "qwen3-8b": 8_190_735_360,  # safetensors of Qwen/Qwen3-8B
    "qwen3-14b": 14_768_307_200,  # safetensors of Qwen/Qwen3-14B
    "qwen3-32b": 32_762_123_264,  # safetensors of Qwen/Qwen3-32B
    "qwen3-30b-a3b": 30_532_122_624,  # safetensors of Qwen/Qwen3-30B-A3B
    "qwen3-235b-a22b": 235_093_634_560,  # safetensors of Qwen/Qwen3-235B-A22B
    "deepseek-v2": 235_741_434_880,  # safetensors of deepseek-ai/DeepSeek-V2
    "deepseek-v2-lite": 15_706_484_224,  # safetensors of deepseek-ai/DeepSeek-V2-Lite
    "gemma-2-2b": 2_614_341_888,  # safetensors of google/gemma-2-2b
    "gemma-2-9b": 9_241_705_984,  # safetensors of google/gemma-2-9b
    "gemma-2-27b": 27_227_128_320,  # safetensors of google/gemma-2-27b
    "gemma-3-1b": 999_885_952,  # safetensors of google/gemma-3-1b-pt
    # Totals as published, carried from memory and not looked up again: keys and count agree to
    # the last digit. "+" is the correction of routers, which checkpoints hold as a buffer.
    "lfm2-8b-a1b": 8_339_929_856 + 22 * 32,  # LiquidAI/LFM2-8B-A1B
    "exaone-3.5-7.8b": 7_818_448_896,  # LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct
    "exaone-3.5-2.4b": 2_405_327_360,  # LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct
    "deepseek-moe-16b": 16_375_728_128,  # deepseek-ai/deepseek-moe-16b-base
    "chatglm3-6b": 6_243_584_000,  # THUDM/chatglm3-6b
    "ling-lite": 16_801_974_272,  # inclusionAI/Ling-lite
    "ling-mini-2.0": 16_255_643_392,  # inclusionAI/Ling-mini-2.0
    "baichuan2-7b": 7_505_973_248,  # baichuan-inc/Baichuan2-7B-Base
    "baichuan2-13b": 13_896_668_160,  # baichuan-inc/Baichuan2-13B-Base
    "dream-7b": 7_615_616_512,  # Dream-org/Dream-v0-Base-7B
    "glm-4.5": 352_797_814_784 + 89 * 160,  # transformers 5.23 on the meta device
    "glm-4.5-air": 106_852_245_504 + 45 * 128,  # transformers 5.23 on the meta device
    "glm-5": 743_911_199_232 + 75 * 256,  # transformers 5.23 on the meta device
    "deepseek-v3.2": 671_877_929_216 + 58 * 256,  # DeepseekV32ForCausalLM
    "kimi-k2.5": 1_026_408_209_408 + 60 * 384,  # language model of Kimi_K25
    "exaone-4.0-1.2b": 1_279_391_488,
    # Presets that transformers 5.23 builds from their keys on the meta device to the same count:
    # `python benchmarks/oracle_transformers.py files` on the keys of the preset.
    "kimi-linear-48b-a3b": 49_122_681_728,
    "minimax-text-01": 456_089_655_296,
    "jamba-1.5-mini": 51_570_323_328,
    "lfm2-1.2b": 1_170_340_608,
    "falcon-7b": 6_921_720_704,
    "falcon-40b": 41_303_293_952,
    "falcon-mamba-7b": 7_272_665_088,
    "mamba-2.8b": 2_768_345_600,
    "command-r": 34_980_831_232,
    "command-r-plus": 103_810_674_688,
    "command-a": 111_057_580_032,
    "dbrx": 131_596_523_520,
    "mistral-small-24b": 23_572_403_200,
    "gemma-3-270m": 268_098_176,
    "granite-3.1-8b": 8_170_848_256,
    "granite-4.0-h-small": 32_207_337_984,
    "hunyuan-a13b": 80_393_183_232,
    "exaone-4.0-32b": 32_003_216_384,
    "ernie-4.5-21b-a3b": 21_825_437_888,
    "internlm3-8b": 8_804_241_408,
    "yi-34b": 34_388_917_248,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "gemma-4-26b-a4b": 25_233_141_760,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "qwen3.5-397b-a17b": 396_346_350_336,
    "qwen3.5-122b-a10b": 122_111_526_912,
    "qwen3.5-35b-a3b": 34_660_610_688,
    "qwen3.5-27b": 26_895_998_464,
    "llama-4-scout": 107_769_861_120,
    "llama-4-maverick": 400_711_848_960,
    "deepseek-v4-flash": 284_332_240_471,
    "moonlight-16b-a3b": 15_960_110_208,
    "phi-2": 2_779_683_840,
    "phi-3-mini": 3_821_079_552,
    "phi-3-medium": 13_960_238_080,
    "phi-4": 14_659_507_200,
    "phi-4-mini": 3_836_021_760,
    "phi-3.5-moe": 41_873_153_344,
    "nemotron-3-nano-30b-a3b": 31_577_940_288,
    "nemotron-nano-9b-v2": 8_888_227_328,
    "olmo-2-7b": 7_298_617_344,
    "olmo-2-13b": 13_716_198_400,
    "olmo-2-32b": 32_234_279_936,
    "olmo-3-7b": 7_298_011_136,
    "olmo-3-32b": 32_233_522_176,
    "olmoe-1b-7b": 6_919_161_856,
    "smollm2-135m": 134_515_008,
    "smollm2-1.7b": 1_711_376_384,
    "smollm3-3b": 3_075_098_624,
    "tinyllama-1.1b": 1_100_048_384,
    "seed-oss-36b": 36_151_104_512,
    "starcoder2-3b": 3_030_371_328,
    "starcoder2-7b": 7_173_923_840,
    "starcoder2-15b": 15_957_889_024,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-large-123b": 122_610_069_504,
    "command-r-08-2024": 32_296_476_672,
    "command-r7b": 8_028_033_024,
    "falcon-180b": 178_557_088_768,
    "falcon-h1-0.5b": 521_411_104,
    "ernie-4.5-0.3b": 360_748_032,
    "ernie-4.5-300b-a47b": 299_484_163_264,
    "dots.llm1": 142_774_381_696,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "bart-large": 406_291_456,
    "bitnet-b1.58-2b-4t": 2_412_820_480,
    "cwm-32b": 32_581_097_472,
    "apertus-8b": 8_053_338_176,
    "glm-4-9b-0414": 9_400_279_040,
    "glm-4-32b-0414": 32_566_081_536,
    "granite-4.0-h-tiny": 6_939_037_248,
    "lfm2-350m": 354_483_968,
    "lfm2-700m": 742_489_344,
    "lfm2-2.6b": 2_569_272_320,
    "mamba-130m": 129_135_360,
    "mamba-codestral-7b": 7_285_403_648,
    "ministral-8b-2410": 8_019_808_256,
    "gemma-3n-e2b": 4_435_182_688,
    "gemma-3n-e4b": 6_835_235_568,
}

# Rounded figures, with half a unit of their last digit [billions].
ROUNDED = {
    "llama-3.3-70b": (70.6, 0.05),  # model card of meta-llama/Llama-3.3-70B-Instruct: 70.6B
    "gpt3-175b": (174.6, 0.05),  # arXiv:2005.14165, table D.1: 174,600 M
    "gpt3-13b": (12.85, 0.005),  # arXiv:2005.14165, table D.1: 12,850 M
    "gpt3-6.7b": (6.66, 0.005),  # arXiv:2005.14165, table D.1: 6,660 M
    "gpt-oss-20b": (20.91, 0.005),  # arXiv:2508.10925, table 1: total 20.91B
    "gpt-oss-120b": (116.83, 0.005),  # arXiv:2508.10925, table 1: total 116.83B
    "deepseek-v3": (671, 0.5),  # arXiv:2412.19437, abstract: 671B
    "arctic": (480, 5),  # model card of Snowflake/snowflake-arctic-base: 480B
    "kimi-k2": (1000, 50),  # model card of moonshotai/Kimi-K2-Base: 1T
    "minimax-m2": (230, 2.5),  # model card of MiniMaxAI/MiniMax-M2: 230B
    "nemotron-4-340b": (341, 0.5),  # arXiv:2406.11704, section 2: 9.4B embedding + 331.6B other
    "jamba-1.5-large": (398, 0.6),  # model card of ai21labs/AI21-Jamba-1.5-Large: 398B (cut)
    "mimo-v2-flash": (309, 0.5),  # model card of XiaomiMiMo/MiMo-V2-Flash: 309B
    "ministral-3-3b": (3.4, 0.05),  # model card of mistralai/Ministral-3-3B-Base-2512: 3.4B
    "ministral-3-14b": (13.5, 0.05),  # model card of mistralai/Ministral-3-14B-Base-2512: 13.5B
    "gemma-4-31b": (30.7, 0.05),  # model card of google/gemma-4-31B: 30.7B
    "megatron-2021-1.7b": (1.7, 0.05),  # arXiv:2104.04473, table 1
    "megatron-2021-3.6b": (3.6, 0.05),  # arXiv:2104.04473, table 1
    "megatron-2021-7.5b": (7.5, 0.05),  # arXiv:2104.04473, table 1
    "megatron-2021-18b": (18.4, 0.05),  # arXiv:2104.04473, table 1
    "megatron-2021-39b": (39.1, 0.05),  # arXiv:2104.04473, table 1
    "megatron-2021-76b": (76.1, 0.05),  # arXiv:2104.04473, table 1
    "megatron-2021-145b": (145.6, 0.05),  # arXiv:2104.04473, table 1
    "megatron-2021-310b": (310.1, 0.05),  # arXiv:2104.04473, table 1
    "megatron-2021-530b": (529.6, 0.05),  # arXiv:2104.04473, table 1
    "megatron-2021-1t": (1008.0, 0.05),  # arXiv:2104.04473, table 1
    "megatron-22b": (22, 0.5),  # arXiv:2205.05198, table 3
    "megatron-175b": (175, 0.5),  # arXiv:2205.05198, table 3
    "megatron-530b": (530, 0.5),  # arXiv:2205.05198, table 3
    "megatron-1t": (1000, 10),  # arXiv:2205.05198, table 3
}

# Active parameters: figure, tolerance [billions], whether the input table counts.
ACTIVE = {
    "mixtral-8x7b": (12.9, 0.05, True),  # arXiv:2401.04088, section 1: 13B; announcement: 12.9B
    "mixtral-8x22b": (39, 0.5, True),  # announcement of Mixtral 8x22B: 39B of 141B
    "qwen3-30b-a3b": (3.3, 0.06, True),  # model card of Qwen/Qwen3-30B-A3B: 3.3B (cut)
    "qwen3-235b-a22b": (22, 0.5, True),  # model card of Qwen/Qwen3-235B-A22B: 22B
    "deepseek-v2": (21, 0.5, False),  # arXiv:2405.04434, abstract: 21B
    "deepseek-v2-lite": (2.4, 0.06, False),  # model card of deepseek-ai/DeepSeek-V2-Lite (cut)
    "deepseek-v3": (37, 0.5, False),  # arXiv:2412.19437, abstract: 37B
    "kimi-k2": (32, 0.5, False),  # model card of moonshotai/Kimi-K2-Base: 32B
    "gpt-oss-20b": (3.61, 0.005, False),  # arXiv:2508.10925, table 1: active 3.61B
    "gpt-oss-120b": (5.13, 0.005, False),  # arXiv:2508.10925, table 1: active 5.13B
    "minimax-m2": (10, 0.5, False),  # model card of MiniMaxAI/MiniMax-M2: 10B
    "jamba-1.5-large": (94, 0.5, True),  # arXiv:2408.12570, abstract: 94B
    "mimo-v2-flash": (15, 0.5, True),  # model card of XiaomiMiMo/MiMo-V2-Flash: 15B
}


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
