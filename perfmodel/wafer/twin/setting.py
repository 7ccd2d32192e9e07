"""What is asked of the generator: a model of its kinds, a system, iterations of them.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/models/dsv3.py`` and
``llama.py`` (models; norms, biases, embedding and multi-token prediction are left out there),
``src/node_level/common/config.py`` (what is asserted, order of ranks), ``dist_info.py`` (buckets).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError, ModelError, StrategyError, did_you_mean
from perfmodel.model.layers import LayerSpec, MlpSpec
from perfmodel.model.spec import ModelSpec
from perfmodel.wafer.routing import RoutedTokens
from perfmodel.wafer.setting import LM_HEAD, CoreSetting, check_layers, layer_names
from perfmodel.wafer.system import WaferSystem, expert_ranks

PRECISIONS = {"fp16": 2, "fp8": 1}
"""Bytes of an element: one for weights, activations, keys and values, and messages."""
MOST_TOKENS = 2**31
MOST_MACS = 2**63


@dataclass(frozen=True)
class Iteration(CoreSetting):
    """A prefill, or a step of decoding.

    Attributes
    ----------
    step : int
        Of decoding, from 0: it sees the prompt and so many tokens more.
    layers : tuple of str
        Layers that run, first to last, ``decode3`` in a prefill too; empty for all.

    Raises
    ------
    ModelError, StrategyError
        The generator has no such model, system or layer, or sizes that nothing could have.
    """

    step: int = 0
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_model(self.model)
        super().__post_init__()
        chosen = check_layers(self, self.layers or None)
        layers = tuple(name for name in layer_names(self) if name in chosen)
        object.__setattr__(self, "layers", layers)
        check_covered(self.moe.experts if self.expert_layers else 0, self.system)

    def check_size(self) -> None:
        """Refuse more tokens or multiply-accumulates than are counted."""
        if self.batch * self.length > MOST_TOKENS:
            raise StrategyError(
                f"keys 'batch' and 'length': {self.batch} x {self.length} tokens exceed "
                f"{MOST_TOKENS}"
            )
        of = self.model.layers[0].attention
        widest = 2 * of.kv_lora_rank + of.head_dim + of.qk_rope_head_dim + of.value_head_dim
        keys = max(self.context, self.length)
        if self.batch * self.length * keys * of.heads * widest >= MOST_MACS:
            raise StrategyError(
                f"keys 'batch' and 'isl': attention of {self.batch} x {self.length} tokens to "
                f"{keys} each is more multiply-accumulates than 63 bits count"
            )

    @property
    def prefix(self) -> str:
        """What names of layers begin with."""
        return "decode"

    @property
    def context(self) -> int:
        """Tokens seen before; 0 for a prefill."""
        return 0 if self.phase == "prefill" else self.input_length + self.step

    @property
    def element(self) -> int:
        """Bytes of an element."""
        return int(self.weight_bytes)

    @cached_property
    def expert_layers(self) -> tuple[int, ...]:
        """Layers with experts, first to last."""
        return tuple(at for at, layer in enumerate(self.model.layers) if layer.experts)

    @property
    def moe(self) -> MlpSpec:
        """The experts of each of them."""
        return self.model.layers[self.expert_layers[0]].mlp

    def has_experts(self, layer: str) -> bool:
        """Whether a layer has routed experts."""
        return layer != LM_HEAD and layer_number(layer) in self.expert_layers

    @property
    def routes(self) -> bool:
        """Whether a layer that runs has experts."""
        return any(map(self.has_experts, self.layers))

    @cached_property
    def expert_nodes(self) -> Integers:
        """Node, or rank of the tensor-parallel group, of each expert: shape (experts,)."""
        return expert_ranks(self.system, self.moe.experts)


def layer_number(layer: str) -> int:
    """Return the number in the name of a layer."""
    return int(layer.removeprefix("decode"))


def check_model(model: ModelSpec) -> None:
    """Make sure that the generator has such a model.

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
    moe = [number for number, layer in enumerate(model.layers) if layer.experts]
    first = moe[0] if moe else model.num_layers
    if moe != list(range(first, model.num_layers)):
        raise _other(model, "layers with experts do not follow those without")
    if bool(moe) != (kinds[0].attention.kind == "mla"):
        raise _other(model, "experts go with latent attention there, and only with it")
    dense = {layer.mlp.intermediate_size for layer in model.layers[:first]}
    routed = {layer.mlp for layer in model.layers[first:]}
    if len(dense) > 1 or len(routed) > 1:
        raise _other(model, "its layers have different widths")


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


def check_covered(experts: int, system: WaferSystem) -> None:
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
    if 0 < experts < system.expert_parallel:
        raise StrategyError(
            f"key 'ep': {system.expert_parallel} exceeds the {experts} experts of the model"
        )


# What is asked of the generator's first stage: iterations, their nodes and their experts.

Routed = Callable[[int], RoutedTokens]
"""Step of decoding, or -1 for the prefill -> experts of its tokens."""
PREFILL = -1


def element_bytes(precision: str) -> tuple[float, float, float]:
    """Return the bytes of weights, activations and cache of a precision that the generator has.

    Raises
    ------
    DataError
        It has another.
    """
    if precision not in PRECISIONS:
        raise DataError(
            f"key 'precision': unknown '{precision}'{did_you_mean(precision, PRECISIONS)}"
        )
    size = float(PRECISIONS[precision])
    return size, size, size


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
    names = () if layers == "all" else tuple(name.strip() for name in layers.split(","))
    found = {}
    for step in steps:
        phase = "prefill" if step == PREFILL else "decode"
        if phase not in systems:
            raise StrategyError(f"system: no block '{phase}'")
        found[step] = Iteration(
            model,
            systems[phase],
            phase,
            batch,
            prompt,
            speculative,
            *element_bytes(precision),
            step=max(step, 0),
            layers=names,
        )
        found[step].check_context(found[step].context, "osl")
    return found


def experts_of(iteration: Iteration, routed: RoutedTokens | None, layer: str) -> Integers:
    """Return the experts of a layer's tokens: shape (batch, length, top_k).

    Raises
    ------
    DataError
        There is no routing, or it lacks the layer or has another number of experts.
    """
    if routed is None:
        raise DataError(f"routing: layer '{layer}' has experts; state which its tokens go to")
    at, known = iteration.expert_layers.index(layer_number(layer)), len(routed.experts)
    if routed.num_experts != iteration.moe.experts:
        raise DataError(
            f"routing: {routed.num_experts} experts; the model has {iteration.moe.experts} a layer"
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
