"""Fine-tuning with low-rank adapters: which matrices have one, and how the others are stored.

LoRA (arXiv:2106.09685) freezes every weight of a model and trains, beside some of its matrices,
a product of two small ones: ``W x + B A x`` with A of rank x inputs and B of outputs x rank. QLoRA
(arXiv:2305.14314) stores the frozen matrices in 4 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from perfmodel.base.errors import ModelError, did_you_mean
from perfmodel.base.files import read_rows
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import LayerSpec, MlpSpec
from perfmodel.model.pieces import check_choice, check_size


@dataclass(frozen=True, slots=True)
class Target:
    """A product of a layer that may have an adapter.

    Attributes
    ----------
    split : {"columns", "rows", "whole"}
        How tensor parallelism cuts it.
    word : str
        What Megatron calls it: one adapter for the product as it runs.
    matrices : tuple of str
        What transformers calls the matrices that stand in it side by side: an adapter for each.
    """

    split: str
    word: str
    matrices: tuple[str, ...]


TARGETS: Mapping[str, Target] = {
    row["product"]: Target(row["split"], row["word"], tuple(row.get("matrices", "").split()))
    for row in read_rows(Path(__file__).with_name("adapters.csv"))
}
"""Products by the names of their operations (`perfmodel.operations`)."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "attention": ("attention.",),
    "mlp": ("mlp.",),
    "all_linear": ("",),
}
"""Words for several products at once -> how their names begin."""

WORDS = tuple(
    dict.fromkeys(
        (
            *GROUPS,
            *(target.word for target in TARGETS.values()),
            *(name for target in TARGETS.values() for name in target.matrices),
        )
    )
)

EVERYTHING = ("all_linear",)
"""Every product of the layers but the router: what Megatron-Bridge and NeMo adapt unless told
otherwise (peft/lora.py, ``target_modules``: linear_qkv, linear_proj, linear_fc1, linear_fc2)."""

FROZEN_BYTES: Mapping[str, float] = {
    "nf4": 0.5 + (1.0 + 4.0 / 256.0) / 64.0,
    "fp8": 1.0,
    "int8": 1.0,
}
"""Formats of frozen matrices that are turned into 16 bits ahead of every product [B/parameter].

NF4 has a scale for every 64 weights, itself stored in 8 bits with one in single precision for
every 256 of them: 0.127 bits a weight (arXiv:2305.14314, section 3, "double quantization").
"""


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """Adapters of a model whose other weights are frozen.

    Attributes
    ----------
    rank : int
        Inner dimension r of every adapter.
    targets : tuple of str
        Words of `WORDS`: "attention", "mlp" or "all_linear" for all such products, Megatron's
        names for one product as it runs (``linear_qkv``), or transformers' for each matrix
        (``q_proj``, ``k_proj``).
    frozen : str
        Format of `FROZEN_BYTES` in which the frozen matrices of the layers are stored; empty: as
        the precision of the run has them.
    share_experts : bool
        The routed experts of a device share an adapter; those of all expert ranks are equal, for
        which their gradients are added up (Megatron-Bridge, docs/training/peft.md,
        ``share_expert_adapters``, its default). Otherwise each expert has its own (PEFT on
        ``nn.Linear`` of experts, torchtune's ``LoRAGroupedExperts``).
    expert_rank : int
        Rank of the adapters of routed experts; 0: `rank` (Megatron-Bridge,
        ``normalize_moe_lora``: the rank over the experts of a token).
    """

    rank: int
    targets: tuple[str, ...] = EVERYTHING
    frozen: str = ""
    share_experts: bool = False
    expert_rank: int = 0

    def __post_init__(self) -> None:
        check_size("lora_rank", self.rank)
        if self.expert_rank:
            check_size("lora_expert_rank", self.expert_rank)
        if not isinstance(self.targets, tuple):
            raise ModelError(f"key 'lora_targets': {self.targets!r} should be a tuple of names")
        for word in self.targets:
            if word not in WORDS:
                raise ModelError(
                    f"key 'lora_targets': {word!r} is no matrix{did_you_mean(str(word), WORDS)}"
                )
        check_choice("lora_frozen", self.frozen, ("", *FROZEN_BYTES))

    def beside_layers(self) -> AdapterSpec:
        """Return what holds of matrices outside of the layers: frozen in 16 bits, no adapters.

        ``lm_head`` and towers: quantisers of transformers leave the first out, PEFT's
        "all-linear" too.
        """
        return AdapterSpec(self.rank, ())

    def whole(self, product: str) -> bool:
        """Tell whether a product has one adapter for all its outputs."""
        if product not in TARGETS:
            return False
        groups = [start for word in self.targets for start in GROUPS.get(word, ())]
        return TARGETS[product].word in self.targets or product.startswith(tuple(groups))

    def covers(self, product: str) -> bool:
        """Tell whether a product has any adapter."""
        if product not in TARGETS:
            return False
        return self.whole(product) or not set(TARGETS[product].matrices).isdisjoint(self.targets)

    def rank_of(self, product: str) -> int:
        """Return the rank of a product's adapters."""
        return self.expert_rank or self.rank if of_experts(product) else self.rank

    def label(self) -> str:
        """Return what differs from the defaults, as names of models carry it."""
        words = [f"lora_rank={self.rank}"]
        if self.targets != EVERYTHING:
            words.append(f"lora_targets={'+'.join(self.targets)}")
        if self.frozen:
            words.append(f"lora_frozen={self.frozen}")
        if self.share_experts:
            words.append("lora_share_experts")
        if self.expert_rank:
            words.append(f"lora_expert_rank={self.expert_rank}")
        return ",".join(words)

    def described(self) -> str:
        """Return the adapters in a few words."""
        stored = f", frozen weights in {self.frozen}" if self.frozen else ""
        shared = ", shared by experts" if self.share_experts else ""
        ranks = f" ({self.expert_rank} on experts)" if self.expert_rank else ""
        return f"LoRA of rank {self.rank}{ranks} on {', '.join(self.targets)}{shared}{stored}"


def fitted(spec: AdapterSpec, layers: tuple[LayerSpec, ...]) -> AdapterSpec:
    """Return adapters without what they say of experts, where they have none."""
    products = (product for layer in layers for product in layer_products(layer))
    if any(of_experts(product) and spec.covers(product) for product in products):
        return spec
    return replace(spec, share_experts=False, expert_rank=0)


def of_experts(product: str) -> bool:
    """Tell whether a product is that of routed experts."""
    return product.startswith("mlp.experts")


def check_targets(spec: AdapterSpec, layers: tuple[LayerSpec, ...]) -> None:
    """Refuse a target that no layer has.

    Raises
    ------
    ModelError
        With the words that some layer has.
    """
    if not spec.targets:
        raise ModelError("key 'lora_targets': should name at least one matrix")
    products = {product for layer in layers for product in layer_products(layer)}
    for word in spec.targets:
        if not any(replace(spec, targets=(word,)).covers(product) for product in products):
            known = [word for word in WORDS if word not in GROUPS]
            there = [
                each
                for each in known
                if any(replace(spec, targets=(each,)).covers(product) for product in products)
            ]
            raise ModelError(
                f"key 'lora_targets': no layer has {word!r}; there are {', '.join(there)}"
            )


def layer_products(layer: LayerSpec) -> Iterator[str]:
    """Yield the products of a layer that may have adapters, by the names of `TARGETS`."""
    for mixer in layer.mixers:
        kind = mixer.__class__.__name__
        if isinstance(mixer, AttentionSpec):
            yield from _attention_products(mixer)
        else:
            prefix = "recurrence" if kind == "RecurrenceSpec" else "convolution"
            yield from (f"{prefix}.input", f"{prefix}.output")
    for mlp in layer.mlps:
        yield from _mlp_products(mlp)


def _attention_products(spec: AttentionSpec) -> Iterator[str]:
    yield "attention.output"
    if spec.cross:
        yield from ("attention.query", "attention.key_value")
        return
    if spec.q_lora_rank:
        yield "attention.query_down"
    if spec.kind == "mla":
        yield from ("attention.key_value_down", "attention.query_up", "attention.key_value_up")
        return
    if spec.q_lora_rank:
        yield "attention.query_up"
    if not (spec.q_lora_rank and spec.shared_keys):
        yield "attention.qkv"


def _mlp_products(mlp: MlpSpec) -> Iterator[str]:
    if mlp.kind == "dense":
        yield from ("mlp.up", "mlp.down")
        return
    yield from ("mlp.experts_up", "mlp.experts_down")
    if mlp.shared_intermediate_size:
        yield from ("mlp.shared.up", "mlp.shared.down")
