"""On what the cost of a pass depends beside its tokens: engine, degrees, formats, speculation.

Formats are those of products and those in which weights lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import HardwareError
from perfmodel.base.precisions import ACTIVATION_FORMATS as ACTIVATION_FORMATS
from perfmodel.base.precisions import AS_STATED as AS_STATED
from perfmodel.base.precisions import CACHE_FORMATS, FORMATS
from perfmodel.base.precisions import WEIGHT_FORMATS as WEIGHT_FORMATS
from perfmodel.model.quantization import PLACES, WIDE_BYTES, WeightFormat
from perfmodel.model.spec import ModelSpec
from perfmodel.operations.operations import Role
from perfmodel.software.engine import Engine

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

KV_FORMATS = CACHE_FORMATS

LAYOUT_FIELDS = (
    "engine",
    "tensor_parallel",
    "pipeline_parallel",
    "expert_parallel",
    "attention_data_parallel",
    "weight_precision",
    "activation_precision",
    "kv_precision",
    "draft_length",
)


@dataclass(frozen=True)
class Layouts:
    """Distinct layouts, as columns.

    A worker holds the model once, on t·a·p devices: t tensor-parallel devices make an attention
    rank, a attention ranks have batches of their own, p pipeline stages follow each other. The
    experts of a stage are spread over e of its t·a devices, each cut over the t·a/e that are
    left; other feed-forward blocks are cut over t.

    Attributes
    ----------
    engines : sequence of Engine
    columns : dict of str to ndarray of int64, shape (layout,)
        By the names in `LAYOUT_FIELDS`: ``engine`` is a position in `engines`, precisions are
        positions in `WEIGHT_FORMATS`, `ACTIVATION_FORMATS` and `KV_FORMATS`.
    """

    engines: Sequence[Engine]
    columns: dict[str, Integers]

    def __len__(self) -> int:
        return int(self.columns["tensor_parallel"].size)

    def take(self, index: Integers) -> Layouts:
        """Return the layouts at `index`."""
        return Layouts(self.engines, {name: it[index] for name, it in self.columns.items()})

    @property
    def rank_devices(self) -> Integers:
        """Devices of a pipeline stage that share the experts, t·a."""
        return self.columns["tensor_parallel"] * self.columns["attention_data_parallel"]

    @property
    def worker_devices(self) -> Integers:
        """Devices of a worker, t·a·p."""
        return self.rank_devices * self.columns["pipeline_parallel"]

    def by_engine(self, fact: str) -> np.ndarray:
        """Return a fact of each layout's engine, shape (layout,)."""
        return np.array([getattr(item, fact) for item in self.engines])[self.columns["engine"]]


STORED_BYTES = {"int4": 0.5 + 2.5 / 128, "fp8_block": 1.0 + 4.0 / 128**2}
"""One weight with its part of a scale [B], where activations are scaled otherwise: groups of 128
with a 16-bit scale and a 4-bit zero point (GPTQ and AWQ checkpoints); blocks of 128 x 128
(DeepSeek-V3, arXiv:2412.19437)."""

CONVERTED = ("attention", "recurrence", "mlp", "shared", "experts")
"""Places that a given format holds for; embedding, router and output stay in 16 bits, as in
checkpoints of llm-compressor and ModelOpt (``ignore = ["lm_head", "*gate"]``)."""

ACTIVATIONS = {"int4": "bf16", "mxfp4": "bf16"}
"""Products of weights that are given without a format of activations; others are the weights'."""

PLACE_OF = {
    Role.ATTENTION: "attention",
    Role.ATTENTION_OUTPUT: "attention",
    Role.RECURRENCE: "recurrence",
    Role.RECURRENCE_OUTPUT: "recurrence",
    Role.MLP: "mlp",
    Role.MLP_OUTPUT: "mlp",
    Role.SHARED: "shared",
    Role.SHARED_OUTPUT: "shared",
    Role.EXPERTS: "mlp",  # projections to a latent; the router is never narrow
    Role.EXPERT_PRODUCT: "experts",
    Role.OUTPUT: "output",
    Role.PREDICTION: "mlp",
}
"""Where the matrices of an operation's role stand, one of `perfmodel.model.quantization.PLACES`."""


class ProductFormat(NamedTuple):
    """How one product runs.

    Attributes
    ----------
    products : str
        Format in which the device multiplies, one of `perfmodel.base.precisions.FORMATS`.
    weight_bytes : float
        One stored weight with its part of a scale [B].
    """

    products: str
    weight_bytes: float


def place_formats(
    model: ModelSpec, index: int, weights: str, activations: str, hardware: Hardware
) -> dict[str, ProductFormat]:
    """Return the format of the products at every place of a layer.

    Parameters
    ----------
    model : ModelSpec
    index : int
        Number of the layer; those of multi-token-prediction modules follow the others.
    weights, activations : str
        As layouts state them (`perfmodel.serving.layouts`).
    hardware : Hardware
        Products in a format that the device cannot multiply run in 16 bits, their weights
        being read as they lie.

    Returns
    -------
    dict of str to ProductFormat
        By `perfmodel.model.quantization.PLACES`.
    """
    stated = model.quantization
    named = set() if stated is None else {x.format.name for x in stated.places}
    named |= set() if stated is None else {x.format.products for x in stated.places}
    own = weights == AS_STATED or weights in named - {"bf16"}
    kept = _kept(model, weights)
    found = {}
    for place in PLACES:
        if own:
            item = stated.at(place, index) if stated is not None else None
            product, width = _stated(item)
        elif place in CONVERTED and place not in kept:
            product, width = ACTIVATIONS.get(weights, weights), weight_bytes(weights)
        else:
            product, width = "bf16", WIDE_BYTES
        narrow = width < WIDE_BYTES
        if narrow and activations != AS_STATED:
            product = activations
        found[place] = ProductFormat(_possible(product, hardware), width)
    return found


def _kept(model: ModelSpec, weights: str) -> frozenset[str]:
    """Return places that a given format leaves out.

    Latent attention stays in 16 bits beside weights of 4 bits (NVIDIA's DeepSeek-R1-FP4 and
    Kimi-K2-Thinking-NVFP4 exclude ``self_attn``, as Kimi-K2-Thinking's own int4 does).
    """
    if weights == AS_STATED or weight_bytes(weights) >= 1.0:
        return frozenset()
    latent = any(x.kind == "mla" for layer in model.layer_kinds()[0] for x in layer.attentions)
    return frozenset(("attention",)) if latent else frozenset()


def weight_bytes(name: str) -> float:
    """Bytes of one weight in a format, its part of a scale included [B]."""
    return STORED_BYTES.get(name) or FORMATS[name].bytes


def _stated(item: WeightFormat | None) -> tuple[str, float]:
    if item is None:
        return "bf16", WIDE_BYTES
    block = max(item.rows, 1) * max(item.columns, 1)
    scale = item.scale_bytes / block if block > 1 else 0.0
    return item.products, item.bits / 8.0 + scale


def _possible(product: str, hardware: Hardware) -> str:
    """Return the format in which a device runs products that are wanted in another."""
    for name in (product, "bf16", "fp16"):
        try:
            hardware.device.peak(name)
        except HardwareError:
            continue
        return name
    return product
