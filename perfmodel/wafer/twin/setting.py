"""What is asked of the generator: a model of its kinds, a system, iterations of them.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/models/dsv3.py`` and
``llama.py``. Norms, biases, embedding and multi-token prediction are left out there.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/common/config.py`` (what is
asserted, order of ranks) and ``dist_info.py`` (buckets).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError, ModelError, StrategyError, did_you_mean
from perfmodel.model.layers import LayerSpec
from perfmodel.model.spec import ModelSpec
from perfmodel.wafer.routing import RoutedTokens
from perfmodel.wafer.system import SharedBatch, WaferSystem, expert_ranks

LM_HEAD = "lm_head"


@dataclass(frozen=True)
class GeneratorModel:
    """Facts of a model, with 0 for what it lacks.

    Attributes
    ----------
    hidden, layers, vocabulary, heads : int
    kv_heads, head_dim : int
        Grouped-query attention.
    q_rank, kv_rank, nope, rope, value : int
        Multi-head latent attention.
    intermediate : int
        Width of a dense network.
    dense_layers : int
        Layers ahead of those with experts; all of them in a model without.
    experts, top_k, expert_intermediate : int
    shared_intermediate : int
        Summed width of the shared experts.
    """

    hidden: int
    layers: int
    vocabulary: int
    heads: int
    intermediate: int
    dense_layers: int
    kv_heads: int = 0
    head_dim: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    nope: int = 0
    rope: int = 0
    value: int = 0
    experts: int = 0
    top_k: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0

    @property
    def latent(self) -> bool:
        """Whether the attention is a latent one."""
        return self.kv_rank > 0

    def layer_names(self, chosen: str = "all") -> tuple[str, ...]:
        """Return the layers chosen, in their order.

        Parameters
        ----------
        chosen : str
            Names such as ``decode5,lm_head``, or ``all``.

        Raises
        ------
        ModelError
            A layer that there is not, or none.
        """
        known = [*(f"decode{number}" for number in range(self.layers)), LM_HEAD]
        asked = [part.strip() for part in chosen.split(",")]
        if asked == ["all"]:
            return tuple(known)
        for name in asked:
            if name not in known:
                raise ModelError(
                    f"key 'layers': there is no layer '{name}'; known: decode0 to "
                    f"decode{self.layers - 1}, {LM_HEAD}, all"
                )
        return tuple(name for name in known if name in asked)

    def has_experts(self, layer: str) -> bool:
        """Whether a layer has routed experts."""
        return layer != LM_HEAD and layer_number(layer) >= self.dense_layers


def layer_number(layer: str) -> int:
    """Return the number in the name of a layer."""
    return int(layer.removeprefix("decode"))


def generator_model(model: ModelSpec) -> GeneratorModel:
    """Return what the generator knows of a model.

    Raises
    ------
    ModelError
        It has neither of the two shapes.
    """
    kinds = model.layer_kinds()[0]
    for layer in kinds:
        _check_mlp(model, layer)
    if len({_attention(model, layer) for layer in kinds}) > 1:
        raise _other(model, "its layers have different attentions")
    attention = kinds[0].attention
    moe = [number for number, layer in enumerate(model.layers) if layer.experts]
    first = moe[0] if moe else model.num_layers
    if moe != list(range(first, model.num_layers)):
        raise _other(model, "layers with experts do not follow those without")
    if bool(moe) != (attention.kind == "mla"):
        raise _other(model, "experts go with latent attention there, and only with it")
    dense = {layer.mlp.intermediate_size for layer in model.layers[:first]}
    routed = {layer.mlp for layer in model.layers[first:]}
    if len(dense) > 1 or len(routed) > 1:
        raise _other(model, "its layers have different widths")
    facts = GeneratorModel(
        hidden=model.hidden_size,
        layers=model.num_layers,
        vocabulary=model.vocab_size,
        heads=attention.heads,
        intermediate=dense.pop() if dense else 0,
        dense_layers=first,
    )
    if not moe:
        return replace(facts, kv_heads=attention.key_value_heads, head_dim=attention.head_dim)
    mlp = routed.pop()
    return replace(
        facts,
        q_rank=attention.q_lora_rank,
        kv_rank=attention.kv_lora_rank,
        nope=attention.qk_nope_head_dim,
        rope=attention.qk_rope_head_dim,
        value=attention.value_head_dim,
        experts=mlp.experts,
        top_k=mlp.experts_per_token,
        expert_intermediate=mlp.expert_intermediate_size,
        shared_intermediate=mlp.shared_intermediate_size,
    )


def _attention(model: ModelSpec, layer: LayerSpec) -> tuple[int, ...]:
    if len(layer.mixers) != 1 or not layer.attentions:
        raise _other(model, "a layer has no attention, or more beside it")
    found = layer.attention
    if found.kind == "mla" and found.q_lora_rank and found.indexer is None:
        sizes = (found.kv_lora_rank, found.qk_nope_head_dim, found.qk_rope_head_dim)
        return (found.heads, found.q_lora_rank, *sizes, found.value_head_dim)
    if found.kind != "full" or found.heads * found.head_dim != model.hidden_size:
        raise _other(model, f"attention '{found.kind}' of {found.heads} x {found.head_dim}")
    return (found.heads, found.key_value_heads, found.head_dim)


def _check_mlp(model: ModelSpec, layer: LayerSpec) -> None:
    if len(layer.mlps) != 1 or not layer.mlp.gated or layer.mlp.latent_size:
        raise _other(model, "a layer has no gated network, or more beside it")
    if layer.experts and not layer.mlp.shared_intermediate_size:
        raise _other(model, "experts without a shared one")


def _other(model: ModelSpec, why: str) -> ModelError:
    return ModelError(
        f"model '{model.name}': the wafer workload generator has DeepSeek-V3 and Llama 3 only "
        f"({why}); its twin runs models of these two shapes"
    )


# One iteration of the generator: a model on a system, and what each node has of the batch.

PRECISIONS = {"fp16": 2, "fp8": 1}
"""Bytes of an element: one for weights, activations, keys and values, and messages."""
MOST_TOKENS = 2**31
LONGEST = 2**31  # tokens of a context
MOST_MACS = 2**63


@dataclass(frozen=True)
class Iteration(SharedBatch):
    """A prefill, or a step of decoding.

    Attributes
    ----------
    model : GeneratorModel
    system : WaferSystem
    batch : int
        Sequences.
    length : int
        Tokens of each that pass: the prompt, or 1 and those speculated.
    context : int
        Tokens seen before; 0 for a prefill.
    precision : {"fp16", "fp8"}
    layers : tuple of str
        Layers that run, first to last; empty for all.

    Raises
    ------
    StrategyError
        The generator has no such system.
    DataError
        Sizes that nothing could have.
    """

    model: GeneratorModel
    system: WaferSystem
    batch: int
    length: int
    context: int = 0
    precision: str = "fp16"
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key, least in (("batch", 1), ("length", 1), ("context", 0)):
            value = getattr(self, key)
            if type(value) is not int or not least <= value <= LONGEST:
                raise DataError(f"key '{key}': a whole number of {least} to {LONGEST}, not {value}")
        if self.batch * self.length > MOST_TOKENS:
            raise DataError(
                f"keys 'batch' and 'length': {self.batch} x {self.length} tokens exceed "
                f"{MOST_TOKENS}"
            )
        widest = 2 * self.model.kv_rank + self.model.rope + 2 * self.model.head_dim
        widest += self.model.nope + self.model.value
        keys = max(self.context, self.length)
        if self.batch * self.length * keys * self.model.heads * widest >= MOST_MACS:
            raise DataError(
                f"keys 'batch' and 'isl': attention of {self.batch} x {self.length} tokens to "
                f"{keys} each is more multiply-accumulates than 63 bits count"
            )
        if self.precision not in PRECISIONS:
            raise DataError(
                f"key 'precision': unknown '{self.precision}'"
                f"{did_you_mean(self.precision, PRECISIONS)}"
            )
        if not self.layers:
            object.__setattr__(self, "layers", self.model.layer_names())
        check_covered(self.model, self.system)

    @property
    def prefill(self) -> bool:
        """Whether prompts are read, and not tokens written."""
        return self.context == 0

    @property
    def element(self) -> int:
        """Bytes of an element."""
        return PRECISIONS[self.precision]

    @property
    def parallel(self) -> int:
        """Nodes over which dense networks and the LM head are split."""
        return self.system.cluster_nodes

    @property
    def exchanges(self) -> bool:
        """Whether tokens go to experts on other nodes."""
        return self.system.expert_parallel > 1

    @cached_property
    def expert_nodes(self) -> Integers:
        """Node, or rank of the tensor-parallel group, of each expert: shape (experts,)."""
        return expert_ranks(self.system, self.model.experts)


def check_covered(model: GeneratorModel, system: WaferSystem) -> None:
    """Make sure that the generator has such a system.

    What it refuses by mistake only runs: experts in tensor-parallel parts, for which it looks
    up rows on the wrong node.

    Raises
    ------
    StrategyError
        Names the key, and what the generator asserts.
    """
    nodes = system.nodes
    elsewhere = "; without the generator's compatibility this runs"
    if system.pipeline_parallel > 1:
        raise StrategyError(
            f"key 'pp': {system.pipeline_parallel} stages; the generator asserts that ep or tp_ffn "
            f"is num_nodes, and so has one{elsewhere}"
        )
    if system.ffn_data_parallel > 1:
        raise StrategyError(
            f"key 'dp_ffn': {system.ffn_data_parallel}; the generator asserts 1{elsewhere}"
        )
    if system.expert_parallel > 1 and system.ffn_tensor_parallel > 1:
        raise StrategyError(
            f"keys 'ep' and 'tp_ffn': {system.expert_parallel} x {system.ffn_tensor_parallel}; the "
            f"generator asserts that one of them is num_nodes, {nodes}{elsewhere}"
        )
    if system.ffn_tensor_parallel > 1 and system.shared_copies > 1:
        raise StrategyError(
            f"key 'n_redundant_shared_exp': {system.shared_copies}; the generator asserts 1 where "
            f"tp_ffn is num_nodes{elsewhere}"
        )
    if 0 < model.experts < system.expert_parallel:
        raise StrategyError(
            f"key 'ep': {system.expert_parallel} exceeds the {model.experts} experts of the model"
        )


# What is asked of the generator's first stage: iterations, their nodes and their experts.

Routed = Callable[[int], RoutedTokens]
"""Step of decoding, or -1 for the prefill -> experts of its tokens."""
PREFILL = -1
STEPS = ("ends", "all")


def decode_steps(count: int, which: str = "ends") -> tuple[int, ...]:
    """Return the steps of decoding that are looked at.

    Between the first and the last step all counts but those of experts are linear in the
    context (in whole tokens per node), so that the generator skips them.

    Parameters
    ----------
    count : int
        Steps.
    which : {"ends", "all"}

    Raises
    ------
    DataError
        Another word, or no step.
    """
    if type(count) is not int or not 1 <= count <= 2**20:
        raise DataError(f"key 'osl': a whole number of 1 to {2**20} steps, not {count}")
    if which not in STEPS:
        raise DataError(f"key 'steps': unknown '{which}'; known: {', '.join(STEPS)}")
    return tuple(range(count)) if which == "all" else tuple(dict.fromkeys((0, count - 1)))


def iterations(
    model: ModelSpec,
    systems: dict[str, WaferSystem],
    batch: int,
    prompt: int,
    steps: Sequence[int],
    *,
    precision: str = "fp16",
    speculative: int = 0,
    layers: str = "all",
) -> dict[int, Iteration]:
    """Return iterations by step.

    Parameters
    ----------
    model : ModelSpec
    systems : dict of str to WaferSystem
        For ``prefill`` and ``decode``, as far as the steps need them.
    batch, prompt : int
        Sequences, and tokens of each that are read.
    steps : sequence of int
        `PREFILL`, and numbers of steps of decoding: step i sees prompt + i tokens.
    precision : {"fp16", "fp8"}
    speculative : int
        Tokens that are guessed beside the next one.
    layers : str
        Names such as ``decode5,lm_head``, or ``all``.

    Raises
    ------
    ModelError, StrategyError, DataError
        A model, system, layer or size that the generator does not have.
    """
    facts = generator_model(model)
    names = facts.layer_names(layers)
    if type(prompt) is not int or prompt < 1:
        raise DataError(f"key 'isl': a whole number above 0, not {prompt}")
    if type(speculative) is not int or not 0 <= speculative < 2**20:
        raise DataError(f"key 'speculative': a whole number of at least 0, not {speculative}")
    if model.max_positions and prompt + max(steps) > model.max_positions:
        raise DataError(
            f"key 'isl': {prompt} tokens and {max(steps)} steps exceed the {model.max_positions} "
            f"positions of {model.name}"
        )
    found = {}
    for step in steps:
        phase = "prefill" if step == PREFILL else "decode"
        if phase not in systems:
            raise StrategyError(f"system: no block '{phase}'")
        found[step] = Iteration(
            facts,
            systems[phase],
            batch,
            prompt if step == PREFILL else 1 + speculative,
            0 if step == PREFILL else prompt + step,
            precision,
            names,
        )
    return found


def expert_layer(facts: GeneratorModel, layer: str) -> int:
    """Return which of the layers with experts a layer is, from 0."""
    return layer_number(layer) - facts.dense_layers


def experts_of(iteration: Iteration, routed: RoutedTokens | None, layer: str) -> Integers:
    """Return the experts of a layer's tokens: shape (batch, length, top_k).

    Raises
    ------
    DataError
        There is no routing, or it lacks the layer or has another number of experts.
    """
    facts = iteration.model
    if routed is None:
        raise DataError(f"routing: layer '{layer}' has experts; state which its tokens go to")
    at, known = expert_layer(facts, layer), len(routed.experts)
    if routed.num_experts != facts.experts:
        raise DataError(
            f"routing: {routed.num_experts} experts; the model has {facts.experts} a layer"
        )
    if known > 1 and at >= known:
        raise DataError(
            f"routing: {known} layers; '{layer}' is the model's layer {at} with experts, from 0"
        )
    return routed.of_layer(at)


def chosen_nodes(system: WaferSystem, nodes: Sequence[int] | None) -> Integers:
    """Return the nodes asked for, all where none are.

    Raises
    ------
    DataError
        A node that there is not.
    """
    if nodes is None:
        return np.arange(system.nodes)
    for node in nodes:
        if not 0 <= node < system.nodes:
            raise DataError(f"key 'nodes': there is no node {node}; known: 0 to {system.nodes - 1}")
    return np.array(list(dict.fromkeys(nodes)), np.int64)
