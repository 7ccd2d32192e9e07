"""What the generator reads of a model: DeepSeek-V3's shape, or Llama's.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/models/dsv3.py`` and
``llama.py``. Norms, biases, embedding and multi-token prediction are left out there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.base.errors import ModelError
from perfmodel.model.layers import LayerSpec
from perfmodel.model.spec import ModelSpec

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
