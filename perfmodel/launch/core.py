"""Megatron-Core's words: an architecture, written and read, and facts of the software.

Keys are the fields of ``TransformerConfig`` and ``MLATransformerConfig``
(megatron/core/transformer/transformer_config.py, Megatron-Core 0.15) and of Megatron Bridge's
``GPTModelProvider``; Megatron-LM's arguments are the same with dashes, but for a few
(`perfmodel.launch.megatron`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from perfmodel.base.errors import ModelError, StrategyError
from perfmodel.launch.describe import beyond_common
from perfmodel.launch.settings import Keys, Settings
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import LayerSpec, MlpSpec
from perfmodel.model.spec import ModelSpec
from perfmodel.software.modules import graph_facts

_PATTERN = re.compile(r"[\[\]()\d,+*\s]+")
LONGEST_PATTERN = 10_000  # layers


def core_facts(model: ModelSpec, title: str, sequence_length: int) -> Keys:
    """Return what Megatron-Core has to be told about an architecture.

    Parameters
    ----------
    model : ModelSpec
    title : str
        What errors call the software.
    sequence_length : int
        Tokens; the positions have to reach as far.

    Raises
    ------
    StrategyError
        Megatron-Core has no such model; names what it lacks.
    """
    _check_expressible(model, title)
    first = model.layers[0]
    facts: Keys = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": first.attention.heads,
        **_attention_facts(model),
        **_mlp_facts(model),
        "normalization": "RMSNorm" if first.norm == "rms" else "LayerNorm",
        "add_bias_linear": first.mlp.bias,
        "add_qkv_bias": first.attention.qkv_bias and not first.mlp.bias,
        "position_embedding_type": {"learned": "learned_absolute"}.get(
            model.position_embedding, model.position_embedding
        ),
        "max_position_embeddings": max(model.max_positions, sequence_length),
        "vocab_size": model.vocab_size,
        "share_embeddings_and_output_weights": model.tied_embeddings,
    }
    if model.mtp_layers:
        facts["mtp_num_layers"] = len(model.mtp_layers)
    return facts


def _attention_facts(model: ModelSpec) -> Keys:
    spec = model.layers[0].attention
    if spec.kind == "mla":
        return {
            "multi_latent_attention": True,
            "q_lora_rank": spec.q_lora_rank or None,
            "kv_lora_rank": spec.kv_lora_rank,
            "qk_head_dim": spec.qk_nope_head_dim,
            "qk_pos_emb_head_dim": spec.qk_rope_head_dim,
            "v_head_dim": spec.value_head_dim,
            "qk_layernorm": True,  # the latent norms
        }
    facts: Keys = {"kv_channels": spec.head_dim, "qk_layernorm": spec.qk_norm}
    if spec.key_value_heads != spec.heads:
        facts["num_query_groups"] = spec.key_value_heads
    if spec.sinks:
        facts["softmax_type"] = "learnable"
    sliding = [layer.attention.kind == "sliding" for layer in model.layers]
    if any(sliding):
        window = next(x.attention.window for x in model.layers if x.attention.kind == "sliding")
        facts["window_size"] = [window - 1, 0]  # keys to the left, keys to the right
        if not all(sliding):
            facts["window_attn_skip_freq"] = [int(x) for x in sliding]
    return facts


def _mlp_facts(model: ModelSpec) -> Keys:
    routed = [layer.mlp for layer in model.layers if layer.mlp.kind == "moe"]
    dense = [layer.mlp for layer in model.layers if layer.mlp.kind == "dense"]
    mlp = model.layers[0].mlp
    facts: Keys = {"gated_linear_unit": mlp.gated, "squared_relu": mlp.activation == "relu2"}
    if dense:
        facts["ffn_hidden_size"] = dense[0].intermediate_size
    if routed:
        experts = routed[0]
        facts |= {
            "num_moe_experts": experts.experts,
            "moe_router_topk": experts.experts_per_token,
            "moe_ffn_hidden_size": experts.expert_intermediate_size,
            "moe_shared_expert_intermediate_size": experts.shared_intermediate_size or None,
            "moe_router_num_groups": experts.expert_groups or None,
            "moe_router_group_topk": experts.expert_groups_per_token or None,
        }
        if experts.router_bias and not experts.bias:
            facts["moe_router_enable_expert_bias"] = True
            facts["moe_router_score_function"] = "sigmoid"  # the bias works with no other
        if dense:
            facts["moe_layer_freq"] = [int(layer.mlp.kind == "moe") for layer in model.layers]
    return facts


def _check_expressible(model: ModelSpec, title: str) -> None:
    """Refuse what Megatron-Core's GPT model has no word for."""

    def refuse(what: str, offers: str) -> StrategyError:
        return StrategyError(f"{title} cannot do {model.name}: {what}; it offers {offers}")

    beyond = beyond_common(model)
    if beyond:
        raise refuse(beyond, "layers of one attention and one MLP")
    first = model.layers[0]
    if first.parallel_block:
        raise refuse("attention and MLP side by side", "one after the other")
    if first.norms != 2:
        raise refuse(f"{first.norms} norms in a layer", "2")
    if first.norm == "layer_no_bias":
        raise refuse("layer norms without bias", "LayerNorm, RMSNorm")
    if model.position_embedding == "alibi" or model.embedding_norm:
        raise refuse("ALiBi positions or a norm after the embedding", "rope, learned positions")
    if model.lm_head_bias or not model.final_norm:
        raise refuse("an output with bias or without a norm before it", "a norm and no bias")
    shapes = {(x.norm, x.norms, x.mlp.gated, x.mlp.activation, x.mlp.bias) for x in model.layers}
    attentions = {
        x.attention if x.attention.kind == "mla" else replace(x.attention, kind="full", window=0)
        for x in model.layers
    }
    widths = [{x.mlp for x in model.layers if x.mlp.kind == kind} for kind in ("dense", "moe")]
    windows = {x.attention.window for x in model.layers if x.attention.kind == "sliding"}
    if len(shapes) > 1 or len(attentions) > 1 or len(windows) > 1:
        raise refuse("layers that differ in more than experts and windows", "equal layers")
    if any(len(found) > 1 for found in widths):
        raise refuse("MLPs of different widths", "one width of each kind")
    _check_attention(first.attention, first.mlp, refuse)
    _check_mlp(first.mlp, widths[1], refuse)
    if model.mtp_layers and set(model.mtp_layers) != {model.layers[-1]}:
        raise refuse("predicting modules unlike the last layer", "modules like it")


def _check_attention(spec: AttentionSpec, mlp: MlpSpec, refuse: Any) -> None:
    if spec.kind != "mla" and spec.value_head_dim != spec.head_dim:
        raise refuse("values longer or shorter than keys", "one length (--kv-channels)")
    if spec.qk_norm and spec.qk_norm_scope != "head":
        raise refuse("one norm over all queries", "one per head")
    if spec.output_bias != mlp.bias or (mlp.bias and not spec.qkv_bias):
        raise refuse("biases on some products only", "biases on all, on queries to values, on none")
    if not spec.causal:
        raise refuse("attention to later tokens", "causal attention")


def _check_mlp(mlp: MlpSpec, routed: set[MlpSpec], refuse: Any) -> None:
    gated, activation = mlp.gated, mlp.activation
    known = ("silu",) if gated else ("gelu", "gelu_tanh", "relu2")
    if activation not in known:
        offers = "swiglu, gelu, squared ReLU"
        raise refuse(f"{'gated ' if gated else ''}{activation} in the MLP", offers)
    for experts in routed:
        if experts.shared_expert_gate:
            raise refuse("a gate on the shared expert", "shared experts without one")
        if experts.bias and not experts.router_bias:
            raise refuse("biases on experts but not on the router", "biases on all")


def pattern_text(pattern: Sequence[int]) -> str:
    """Return a list of layers as Megatron-LM's arguments write it: ``([0]*3+[1]*58)``."""
    runs = [(value, len(list(same))) for value, same in groupby(pattern)]
    return "(" + "+".join(f"[{value}]*{count}" for value, count in runs) + ")"


def read_pattern(settings: Settings, key: str, layers: int, *, sliding: bool) -> list[bool]:
    """Return which layers have experts, or a window.

    Parameters
    ----------
    settings : Settings
    key : str
        Absent: all have.
    layers : int
    sliding : bool
        A number N means windows in all layers but every Nth; otherwise experts in every Nth
        layer, from the first.

    Raises
    ------
    FormatError
        It is neither a number nor a list of as many zeros and ones as there are layers.
    """
    value = settings.stated(key)
    if value is None:
        return [True] * layers
    expected = f"a number, or a list of {layers} zeros and ones such as {pattern_text([0, 1])}"
    if isinstance(value, str):
        found = _evaluate(value)
        if found is None:
            raise settings.wrong(key, expected)
        value = found
    if isinstance(value, list) and len(value) == layers and all(x in (0, 1) for x in value):
        return [bool(x) for x in value]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise settings.wrong(key, expected)
    if sliding:
        return [(i + 1) % value != 0 for i in range(layers)]
    return [i % value == 0 for i in range(layers)]


def _evaluate(text: str) -> int | list[int] | None:
    """Return the number or the list that a pattern stands for; None for anything else.

    Sums of lists, each of them perhaps in parentheses and repeated: ``([1]*3+[0])*2``.
    """
    plain = re.sub(r"\s", "", text)
    if len(plain) > LONGEST_PATTERN or not _PATTERN.fullmatch(plain):
        return None
    if plain.isascii() and plain.isdigit():
        return int(plain) if len(plain) < 10 else None
    try:
        found, end = _sum(plain, 0, 0)
    except (ValueError, IndexError):
        return None
    return found if end == len(plain) else None


def _sum(text: str, at: int, depth: int) -> tuple[list[int], int]:
    found: list[int] = []
    while True:
        part, at = _repeated(text, at, depth)
        found += part
        if len(found) > LONGEST_PATTERN:
            raise ValueError
        if at >= len(text) or text[at] != "+":
            return found, at
        at += 1


def _repeated(text: str, at: int, depth: int) -> tuple[list[int], int]:
    if depth > 20:
        raise ValueError
    if text[at] == "(":
        part, at = _sum(text, at + 1, depth + 1)
        if text[at] != ")":
            raise ValueError
        at += 1
    elif text[at] == "[":
        end = text.index("]", at)
        part = [int(item) for item in text[at + 1 : end].split(",")]
        at = end + 1
    else:
        raise ValueError
    while at < len(text) and text[at] == "*":
        digits = re.match(r"\d{1,5}", text[at + 1 :])
        if not digits:
            raise ValueError
        times = int(digits.group())
        if times * len(part) > LONGEST_PATTERN:
            raise ValueError
        part, at = part * times, at + 1 + len(digits.group())
    return part, at


class CoreWords:
    """Megatron-Core's words in a file: as they are, or as a software's own names for them.

    Parameters
    ----------
    settings : Settings
    prefix : str
        What stands before each word, such as ``model.``.
    """

    def __init__(self, settings: Settings, prefix: str = "") -> None:
        self.settings = settings
        self.prefix = prefix

    def key(self, name: str) -> str:
        """Return the file's key for a word."""
        return self.prefix + name

    def size(self, name: str, default: int | None = None) -> int:
        """Return a whole number, of at least 1 unless `default` is 0."""
        return self.settings.whole(self.key(name), default, 0 if default == 0 else 1)

    def flag(self, name: str) -> bool:
        """Tell whether a switch is on."""
        return self.settings.flag(self.key(name))

    def word(self, name: str, default: str) -> str:
        """Return a word."""
        return self.settings.word(self.key(name), default)


def core_model(words: CoreWords, name: str, sequence_length: int = 1) -> ModelSpec:
    """Return the model that a file describes.

    Parameters
    ----------
    words : CoreWords
        With what `core_facts` writes.
    name : str
        What the model is called.
    sequence_length : int
        Tokens; as far the learned positions reach where a file does not say.

    Raises
    ------
    FormatError
        A key is missing or wrong.
    ModelError
        The sizes contradict each other; begins with the file.
    """
    layers = words.size("num_layers")
    if layers > LONGEST_PATTERN:
        raise words.settings.wrong(words.key("num_layers"), f"at most {LONGEST_PATTERN} layers")
    try:
        return _model(words, name, layers, sequence_length)
    except ModelError as error:
        raise ModelError(f"{words.settings.path}: {error}") from None


def _model(words: CoreWords, name: str, layers: int, reach: int) -> ModelSpec:
    hidden, bias = words.size("hidden_size"), words.flag("add_bias_linear")
    attention = _read_attention(words, hidden, bias)
    windows = _read_windows(words, layers)
    experts = words.size("num_moe_experts", 0)
    routed = [False] * layers
    if experts:
        key = words.key("moe_layer_freq")
        routed = read_pattern(words.settings, key, layers, sliding=False)
    norm = "rms" if words.word("normalization", "LayerNorm").lower() == "rmsnorm" else "layer"
    kinds = {}
    for moe, window in dict.fromkeys(zip(routed, windows, strict=True)):
        seen = replace(attention, kind="sliding", window=window) if window else attention
        kinds[moe, window] = LayerSpec(
            (seen,), (_read_mlp(words, hidden, bias, moe, experts),), norm
        )
    stack = tuple(kinds[key] for key in zip(routed, windows, strict=True))
    position = words.word("position_embedding_type", "learned_absolute")
    return ModelSpec(
        name,
        "megatron",
        hidden,
        words.size("vocab_size"),
        layers=stack,
        tied_embeddings=words.flag("share_embeddings_and_output_weights"),
        position_embedding={"learned_absolute": "learned", "none": "none"}.get(position, "rope"),
        max_positions=words.size("max_position_embeddings", reach),
        mtp_layers=(stack[-1],) * min(words.size("mtp_num_layers", 0), layers),
        source=str(words.settings.path),
    )


def _read_attention(words: CoreWords, hidden: int, bias: bool) -> AttentionSpec:
    heads = words.size("num_attention_heads")
    qkv = bias or words.flag("add_qkv_bias")
    norm = words.flag("qk_layernorm")
    if words.flag("multi_latent_attention"):
        # Defaults of MLATransformerConfig.
        nope, rope = words.size("qk_head_dim", 128), words.size("qk_pos_emb_head_dim", 64)
        return AttentionSpec(
            "mla",
            heads,
            heads,
            nope + rope,
            words.size("v_head_dim", 128),
            q_lora_rank=words.size("q_lora_rank", 0),
            kv_lora_rank=words.size("kv_lora_rank", 512),
            qk_nope_head_dim=nope,
            qk_rope_head_dim=rope,
            qkv_bias=qkv,
            output_bias=bias,
        )
    return AttentionSpec(
        "full",
        heads,
        words.size("num_query_groups", heads),
        words.size("kv_channels", max(hidden // heads, 1)),
        qk_norm=norm,
        sinks=words.word("softmax_type", "vanilla") == "learnable",
        qkv_bias=qkv,
        output_bias=bias,
    )


def _read_windows(words: CoreWords, layers: int) -> list[int]:
    """Return the window of every layer, 0 for full attention."""
    settings, key = words.settings, words.key("window_size")
    value = settings.stated(key)
    if value is None:
        return [0] * layers
    numbers = value if isinstance(value, list) else str(value).strip("()[]").split(",")
    first = str(numbers[0]).strip() if numbers else ""
    if not (first.isascii() and first.isdigit() and len(first) < 13):
        raise settings.wrong(key, "keys to the left and to the right, such as 4095,0")
    slides = read_pattern(settings, words.key("window_attn_skip_freq"), layers, sliding=True)
    return [int(first) + 1 if here else 0 for here in slides]


def _read_mlp(words: CoreWords, hidden: int, bias: bool, moe: bool, experts: int) -> MlpSpec:
    gated, squared = words.flag("gated_linear_unit"), words.flag("squared_relu")
    function = "silu" if gated else "relu2" if squared else "gelu"
    width = words.size("ffn_hidden_size", 4 * hidden)
    if not moe:
        return MlpSpec("dense", width, gated=gated, activation=function, bias=bias)
    return MlpSpec(
        "moe",
        gated=gated,
        activation=function,
        bias=bias,
        experts=experts,
        experts_per_token=words.size("moe_router_topk", 2),
        expert_intermediate_size=words.size("moe_ffn_hidden_size", width),
        shared_intermediate_size=words.size("moe_shared_expert_intermediate_size", 0),
        router_bias=bias or words.flag("moe_router_enable_expert_bias"),
        expert_groups=words.size("moe_router_num_groups", 0),
        expert_groups_per_token=words.size("moe_router_group_topk", 0),
    )


def core_software(settings: Settings, spelled: Callable[[str], str]) -> Keys:
    """Return the facts of the framework that a run's options set.

    Parameters
    ----------
    settings : Settings
    spelled : callable
        How the software spells a field of ``TransformerConfig``.

    Raises
    ------
    FormatError
        A capacity is no positive number.
    """
    facts: Keys = {}
    captured = settings.word(spelled("cuda_graph_impl"), "none")
    # Options of Megatron-Core before 0.14.
    for older in ("enable_cuda_graph", "external_cuda_graph"):
        if settings.flag(spelled(older)):
            captured = older
    scope = settings.word(spelled("cuda_graph_scope"))
    if captured != "none":
        facts |= graph_facts(captured if captured == "full_iteration" else scope)
    if settings.flag(spelled("moe_pad_expert_input_to_capacity")):
        facts["capacity_factor"] = settings.number(spelled("moe_expert_capacity_factor"), 1.0)
    return facts
