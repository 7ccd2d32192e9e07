"""Typed access to the keys of a ``config.json``.

`ConfigKeys` remembers which keys a family has read, so that a key which changes the
architecture, and which nobody has read, is refused instead of being overlooked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from perfmodel.base.errors import ModelError
from perfmodel.model.checks import check_choice, check_flag, check_multiple, check_size

_MISSING: Any = object()

# Names that the Hugging Face library gives to activation functions, and ours.
HUGGING_FACE_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}

LAYER_TYPES = {"full_attention": "full", "sliding_attention": "sliding"}

# A key that is one of these, or holds one of the fragments, changes what a layer
# computes. A family that covers it reads it; any other family refuses it.
ARCHITECTURE_KEYS = frozenset(
    {
        "add_cross_attention",
        "attention_bias",
        "attention_chunk_size",
        "attention_k_eq_v",
        "attn_output_gate",
        "attn_type_list",
        "compress_ratios",
        "cross_attention_layers",
        "enable_moe_block",
        "first_k_dense_replace",
        "full_attention_interval",
        "global_head_dim",
        "hc_mult",
        "hidden_size_per_layer_input",
        "is_encoder_decoder",
        "layer_types",
        "layers_block_type",
        "mlp_bias",
        "mlp_only_layers",
        "mtp_num_hidden_layers",
        "num_global_key_value_heads",
        "num_hash_layers",
        "num_kv_shared_layers",
        "num_mtp_modules",
        "num_nextn_predict_layers",
        "o_groups",
        "shared_intermediate_size",
        "sliding_window",
        "sliding_window_pattern",
        "use_double_wide_mlp",
        "use_qk_norm",
        "use_routing_bias",
    }
)
ARCHITECTURE_FRAGMENTS = (
    "_lora_rank",
    "expert",
    "hybrid",
    "index_",
    "intermediate_size",
    "linear_",
    "mamba",
    "ssm_",
)


class ConfigKeys:
    """The keys of one model description.

    Parameters
    ----------
    config : mapping
        What the JSON object holds.
    model_type : str
        The family that reads it.
    name, source : str
        What the model is called, and where the description is from.
    """

    def __init__(
        self, config: Mapping[str, Any], model_type: str, name: str = "", source: str = ""
    ) -> None:
        self._config = config
        self.model_type = model_type
        self.name = name
        self.source = source
        self._read: set[str] = set()
        self._sections: list[ConfigKeys] = []

    def value(self, key: str, default: Any = _MISSING) -> Any:
        """Return what stands under `key`; null counts as absent."""
        self._read.add(key)
        found = self._config.get(key)
        if found is not None:
            return found
        if default is _MISSING:
            raise ModelError(f"key {key!r}: missing or null")
        return default

    def pass_over(self, *names: str) -> None:
        """Count keys as read that have no effect beside the others."""
        self._read.update(names)

    def section(self, key: str) -> ConfigKeys:
        """Return the keys of an object inside this one; an absent one is empty."""
        found = self.value(key, {})
        if not isinstance(found, Mapping):
            raise ModelError(f"key {key!r}: {found!r} should be an object")
        section = ConfigKeys(found, self.model_type)
        self._sections.append(section)
        return section

    def size(self, key: str, default: Any = _MISSING, *, minimum: int = 1, **limits: int) -> int:
        """Return an integer of at least `minimum`; see `check_size`."""
        found = self.value(key, default)
        check_size(key, found, minimum=minimum, **limits)
        return int(found)

    def size_of(self, keys: Iterable[str], default: Any = _MISSING) -> int:
        """Return the size under the first of several names for one thing."""
        names = list(keys)
        for key in names:
            if self.value(key, None) is not None:
                return self.size(key)
        if default is _MISSING:
            raise ModelError(f"key {names[0]!r}: missing or null")
        check_size(names[0], default)
        return int(default)

    def flag(self, key: str, default: bool) -> bool:
        """Return a truth value."""
        found = self.value(key, default)
        check_flag(key, found)
        return bool(found)

    def choice(self, key: str, choices: Iterable[str], default: str) -> str:
        """Return one of several words."""
        found = self.value(key, default)
        check_choice(key, found, choices)
        return str(found)

    def activation(self, key: str, default: str) -> str:
        """Return our name of an activation function."""
        found = self.choice(key, HUGGING_FACE_ACTIVATIONS, default)
        return HUGGING_FACE_ACTIVATIONS[found]

    def head_dim(self, heads_key: str, heads: int, hidden_key: str, hidden_size: int) -> int:
        """Return ``head_dim``, or the hidden size divided by the heads."""
        stated = self.value("head_dim", None)
        if stated is not None:
            return self.size("head_dim")
        check_multiple(hidden_key, hidden_size, heads_key, heads)
        return hidden_size // heads

    def integers(self, key: str) -> tuple[int, ...]:
        """Return a list of integers of at least 0; an absent one is empty."""
        found = self.value(key, [])
        if not isinstance(found, list):
            raise ModelError(f"key {key!r}: {found!r} should be a list of integers")
        for item in found:
            check_size(key, item, minimum=0)
        return tuple(found)

    def layer_kinds(self, layers: int) -> tuple[str, ...] | None:
        """Return "full" or "sliding" for each layer from ``layer_types``, if it is there."""
        found = self.value("layer_types", None)
        if found is None:
            return None
        if not isinstance(found, list) or len(found) != layers:
            count = len(found) if isinstance(found, list) else repr(found)
            raise ModelError(
                f"key 'layer_types': {count} entries should be {layers}, one per layer"
            )
        for item in found:
            if not isinstance(item, str) or item not in LAYER_TYPES:
                raise ModelError(
                    f"key 'layer_types': {item!r} layers are not modelled yet; "
                    f"covered: {', '.join(LAYER_TYPES)}"
                )
        return tuple(LAYER_TYPES[item] for item in found)

    def refuse_unread(self) -> None:
        """Refuse keys that change the architecture and that the family has not read."""
        for section in self._sections:
            section.refuse_unread()
        for key, found in self._config.items():
            if key in self._read or not found:  # null, false, 0 and [] switch nothing on
                continue
            if key in ARCHITECTURE_KEYS or any(part in key for part in ARCHITECTURE_FRAGMENTS):
                shown = repr(found) if len(repr(found)) <= 60 else repr(found)[:57] + "..."
                raise ModelError(
                    f"key {key!r}: {shown} changes the architecture in a way that is not "
                    f"modelled for model_type {self.model_type!r}"
                )
