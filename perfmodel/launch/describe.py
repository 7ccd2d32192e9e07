"""One run, whatever software runs it: what a launch file says in its own words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfmodel.base.facts import Run
from perfmodel.base.strategy_fields import FIELDS, MAPPINGS
from perfmodel.model.adapters import AdapterSpec
from perfmodel.model.layers import describe_layer, describe_mixer
from perfmodel.model.presets import load_model
from perfmodel.model.spec import ModelSpec
from perfmodel.software.framework import Framework

# Orders of the axes that training software has: by default, and with replicas outermost.
USUAL = (MAPPINGS[0], "tensor-context-pipeline-data")


@dataclass(frozen=True, slots=True)
class Launch:
    """One run of a training framework.

    Attributes
    ----------
    strategy : mapping of str to int, bool or str
        Every strategy field, labels for choices. As read it has no ``data_parallel`` where the
        file does not say how many devices there are.
    framework : Framework
        What overlaps and what is fused; as read, what the file switches on.
    model : ModelSpec or None
        None where a file does not say what it trains.
    devices : int
        Devices of the run; 0 where a file does not say.
    devices_per_node : int
        0 where unknown.
    domain : int
        Devices of one innermost network: an NVLink domain, a TPU slice; 0 where unknown.
    adapters : AdapterSpec or None
        What a file has trained beside frozen weights; `model` is as it is without them.
    run : Run or None
        What tells the runs of which some facts hold; None where the machine is unknown.
    facts : mapping
        As read: facts of the framework that the file states, or has by its silence.
    remarks : tuple of str
        What the reader, or the projection, could not take as it stands.
    """

    strategy: Mapping[str, Any]
    framework: Framework
    model: ModelSpec | None = None
    devices: int = 0
    devices_per_node: int = 0
    domain: int = 0
    adapters: AdapterSpec | None = None
    run: Run | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def __getitem__(self, field: str) -> Any:
        return self.strategy[field]

    @property
    def nodes(self) -> int:
        """Whole nodes that hold the devices; 1 where nodes are unknown or larger than the run."""
        return max(self.devices // max(self.devices_per_node, 1), 1)

    @property
    def processes_per_node(self) -> int:
        """Processes that a launcher starts on each node, one per device."""
        return self.devices // self.nodes

    @property
    def replicas(self) -> int:
        """Ranks that hold the same dense parameters."""
        return int(self["data_parallel"] * self["context_parallel"])

    @property
    def shard_degree(self) -> int:
        """Data-parallel ranks of one shard set; 1 where nothing is sharded."""
        if self["zero_stage"] == 0:
            return 1
        return int((self["shard_group"] or self.replicas) // self["context_parallel"])

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one replica in a step."""
        return int(self["global_batch_size"] // (self["data_parallel"] * self["micro_batch_size"]))

    @property
    def experts(self) -> bool:
        """Whether the model is known to have routed experts."""
        return has_experts(self.model)


def has_experts(model: ModelSpec | None) -> bool:
    """Tell whether a model has routed experts."""
    return model is not None and model.has_experts


def experts_per_token(model: ModelSpec | None) -> int:
    """Return how many routed experts a token has; 0 where a model has none."""
    layers = model.layers if model is not None else ()
    blocks = (mlp for layer in layers for mlp in layer.mlps if mlp.kind == "moe")
    return max((mlp.experts_per_token for mlp in blocks), default=0)


def beyond_common(model: ModelSpec) -> str:
    """Return what of a model no launch file has a word for; empty where nothing is.

    Common are layers of one attention, full, sliding or latent, and one feed-forward block.
    """
    if model.adapters is not None:
        return "adapters beside frozen weights"
    for tower in model.towers:
        if tower.name == "encoder" or tower.tokens:  # others are not run
            return f"a tower of {tower.name} layers"
    if model.extra or model.embedding_width:
        return "matrices or tables beside the layers"
    for layer in dict.fromkeys((*model.layers, *model.mtp_layers)):
        if not (len(layer.mixers) == len(layer.attentions) == len(layer.mlps) == 1):
            return f"layers of {describe_layer(layer)}"
        if layer.streams > 1 or layer.extra:
            return "residual streams or matrices beside attention and MLP"
        attention, mlp = layer.attention, layer.mlp
        rank = attention.q_lora_rank if attention.kind != "mla" else 0
        if attention.kind == "chunked" or attention.sparse or rank or attention.extra:
            return describe_mixer(attention)
        if attention.output_gate != "none" or attention.output_groups:
            return "a gate or a low rank on the output of attention"
        if attention.key_is_value or attention.shared_keys or attention.cross:
            return "keys that are values, or those of other layers"
        if mlp.latent_size or mlp.hash_routing or mlp.extra:
            return "experts in a latent space, or routed by token"
    return ""


def settled(strategy: Mapping[str, Any], model: ModelSpec | None) -> dict[str, Any]:
    """Return a strategy with one value for each thing that does not matter to it.

    How context parallelism exchanges keys does not matter to one rank, the schedule of a
    pipeline not to one stage, ZeRO not to one replica, the place of an axis of degree 1 not to
    any mapping, and a shard set of all ranks is the default. Launch files say none of these.
    """
    row = {spec.name: strategy.get(spec.name, spec.default) for spec in FIELDS}
    ranks = row["data_parallel"] * row["context_parallel"]
    if row["context_parallel"] == 1:
        row["context_parallel_kind"] = "ring"
    if row["pipeline_parallel"] == 1 and row["virtual_pipeline"] == 1:
        row["pipeline_schedule"] = "1f1b"
    interleaved = row["pipeline_schedule"] == "interleaved"
    if not interleaved or row["micro_batch_group"] == row["pipeline_parallel"]:
        row["micro_batch_group"] = 0
    copies = ranks * row["tensor_parallel"]
    copies //= row["expert_parallel"] * row["expert_tensor_parallel"]
    if ranks == 1 and (copies <= 1 or not has_experts(model)):
        row["zero_stage"] = 0
    if row["shard_group"] == ranks or row["zero_stage"] == 0:
        row["shard_group"] = 0
    row["mapping"] = _plainest_mapping(row)
    if row["recompute_method"] in ("uniform", "every") and row["recompute_num_layers"] == 1:
        row |= {"recompute_method": "single", "recompute_num_layers": 0}
    return row


def _plainest_mapping(row: Mapping[str, Any]) -> str:
    """Return the usual mapping that has the axes of more than one rank in the same order."""

    def order(mapping: str) -> list[str]:
        return [axis for axis in mapping.split("-") if row[f"{axis}_parallel"] > 1]

    given = str(row["mapping"])
    return next((usual for usual in USUAL if order(usual) == order(given)), given)


def known_as(model: ModelSpec | None, names: Mapping[Any, str]) -> Any:
    """Return the key of the preset that a model is; None where it is none of them.

    Parameters
    ----------
    model : ModelSpec or None
    names : mapping of object to str
        What a software calls a model -> preset. Of presets with the same layers the one of the
        model's own name counts, then one that reaches as far.
    """
    if model is None:
        return None
    alike = []
    for key, preset in names.items():
        known = load_model(preset)
        sizes = (known.hidden_size, known.layers, known.vocab_size)
        if sizes == (model.hidden_size, model.layers, model.vocab_size):
            alike.append((preset != model.name, known.max_positions != model.max_positions, key))
    return min(alike, key=lambda item: item[:2])[2] if alike else None
