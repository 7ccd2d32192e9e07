"""Models known by name: the presets shipped as ``presets/*.json``, `load_model`; models of records.

Each file holds one family: a mapping from a preset's name to its ``source``, its names on the
Hugging Face Hub under ``hub``, other names under ``aliases``, and its ``config`` with the keys of
a Hugging Face ``config.json``. Only facts that shape the model are kept there.

Results keep a record of a model (`dataclasses.asdict` of a `ModelSpec`), which becomes one again.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from perfmodel.base.errors import ModelError, did_you_mean
from perfmodel.model.adapters import AdapterSpec
from perfmodel.model.attention import AttentionSpec, CompressionSpec, IndexerSpec
from perfmodel.model.config import model_from_config, read_config
from perfmodel.model.layers import LayerSpec, Mixer, MlpSpec
from perfmodel.model.pieces import Piece, Pieces, check_choice
from perfmodel.model.quantization import PlaceFormat, QuantizationSpec, WeightFormat
from perfmodel.model.recurrence import RecurrenceSpec, ShortConvolutionSpec
from perfmodel.model.spec import ModelSpec, TowerSpec

# Parts of published names that leave the architecture as it is; four digits are a date.
_VARIANT = re.compile(r"-(hf|instruct|it|chat|base|pt|bf16|fp8|\d{4})(?=-|$)")
# Names that speak of weights in fp8, and what Qwen's checkpoints of such names state
# (config.json of Qwen/Qwen3-8B-FP8 and its kin).
_QUANTISED = re.compile(r"-fp8(?=-|$)")
_QWEN_FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """One line about a preset.

    Attributes
    ----------
    name, family : str
    parameters, active_parameters : int
        All parameters, and those that one token meets.
    hub : tuple of str
        Names on the Hugging Face Hub, organisation first.
    aliases : tuple of str
    source : str
    """

    name: str
    family: str
    parameters: int
    active_parameters: int
    hub: tuple[str, ...]
    aliases: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a file of presets says of one."""

    config: dict[str, Any]
    source: str
    hub: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


MTP = ("none", "stated")


def load_model(
    name_or_path: str | Path | Mapping[str, Any] | ModelSpec,
    *,
    family: str = "",
    mtp: str = "none",
    adapters: AdapterSpec | None = None,
) -> ModelSpec:
    """Return a model by preset name, from a file or directory, or from a mapping.

    Parameters
    ----------
    name_or_path : str, Path, mapping or ModelSpec
        A preset's name in any case, or its name on the Hub ("meta-llama/Llama-3.1-70B",
        "Llama-3.1-70B-Instruct"); a ``config.json``, or a directory that holds one;
        or the contents of a ``config.json``; or a model, which comes back as it is.
    family : str
        Read a file or mapping as this family, whatever it calls itself
        (`perfmodel.model.config.model_from_config`); presets keep theirs.
    mtp : {"none", "stated"}
        Whether the multi-token-prediction modules that a description states are left out,
        as published totals and transformers leave them, or trained and counted.
    adapters : AdapterSpec, optional
        Train these low-rank adapters, all other weights frozen (`perfmodel.AdapterSpec`).

    Returns
    -------
    ModelSpec

    Raises
    ------
    ModelError
        If there is no such preset or file, or if the description is at fault.

    Examples
    --------
    >>> load_model("llama-3.1-70b").parameter_count()
    70553706496
    >>> load_model("llama-3.1-70b", adapters=AdapterSpec(16)).name
    'llama-3.1-70b[lora_rank=16]'
    """
    check_choice("mtp", mtp, MTP)
    if isinstance(name_or_path, ModelSpec):
        return name_or_path.with_adapters(adapters)
    model = _read(name_or_path, family)
    model = model if mtp == "stated" else model.without_mtp()
    return model.with_adapters(adapters)


def _read(name_or_path: str | Path | Mapping[str, Any], family: str) -> ModelSpec:
    """Return a model with all that its description states."""
    if isinstance(name_or_path, Mapping):
        return model_from_config(name_or_path, name=_stated_name(name_or_path), family=family)
    if isinstance(name_or_path, Path):
        return read_config(name_or_path, family=family)
    if not isinstance(name_or_path, str) or not name_or_path.strip():
        raise ModelError(f"model {name_or_path!r}: should be a preset's name or a path")
    if _looks_like_path(name_or_path):
        return read_config(name_or_path, family=family)
    preset = find_preset(name_or_path)
    if preset is not None:
        return _with_weights(name_or_path, preset)
    if Path(name_or_path).exists():
        return read_config(name_or_path, family=family)
    raise ModelError(
        f"no model preset and no file is called {name_or_path!r}{_meant(name_or_path)}"
    )


def _with_weights(name: str, preset: str) -> ModelSpec:
    """Return a preset with the weights of which its name speaks, or a remark that it has others."""
    model = _preset_model(preset)
    if model.quantization is not None or not _QUANTISED.search(_plain(name)):
        return model
    if "qwen" in _organisations(preset):
        config = {**_entries()[preset].config, "quantization_config": _QWEN_FP8}
        return replace(model, quantization=model_from_config(config).quantization)
    text = (
        f"the preset's weights are as published without '-FP8'; the config.json of {name} says more"
    )
    return replace(model, remarks=(*model.remarks, text))


def _meant(name: str) -> str:
    """Return what may have been meant by a name that nothing has."""
    organisation, _, last = name.strip().rpartition("/")
    known = find_preset(last) if organisation else None
    if known is not None:
        return f"; did you mean {next(iter(_entries()[known].hub), known)}?"
    names = [spelling for name, entry in _entries().items() for spelling in (name, *entry.aliases)]
    names += [_plain(spelling) for entry in _entries().values() for spelling in entry.hub]
    families = sorted({_preset_model(name).family for name in _entries()})
    hint = did_you_mean(_plain(name), names)
    return hint or "; there are presets of these families: " + ", ".join(families)


def find_preset(name: str) -> str | None:
    """Return the name of the preset that `name` means, or None.

    Case, hyphens, underscores and spaces make no difference, nor do parts such as
    "-Instruct" and dates. An organisation, where one is given, has to be one under which
    the Hub has the model.
    """
    known = _squashed_names()
    organisation, _, last = name.strip().rpartition("/")
    plain = _plain(last)
    for stated in (plain, _VARIANT.sub("", plain)):
        for candidate in (stated, stated.removeprefix("meta-")):
            preset = known.get(_squash(candidate))
            if preset is not None and (
                not organisation or organisation.lower() in _organisations(preset)
            ):
                return preset
    return None


def hub_names() -> dict[str, str]:
    """Return every name on the Hugging Face Hub, and the preset that it means."""
    return {hub: name for name, entry in _entries().items() for hub in entry.hub}


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, families together."""
    return tuple(_entries())


def list_models() -> tuple[ModelSummary, ...]:
    """Return one summary per preset, families together."""
    summaries = []
    for name, entry in _entries().items():
        model = load_model(name)
        summaries.append(
            ModelSummary(
                name,
                model.family,
                model.parameter_count(),
                model.active_parameter_count(),
                entry.hub,
                entry.aliases,
                entry.source,
            )
        )
    return tuple(summaries)


@cache
def _entries() -> dict[str, _Entry]:
    """Every preset, in the order of the files."""
    found = {}
    folder = resources.files("perfmodel.model") / "presets"
    files = [item for item in folder.iterdir() if item.name.endswith(".json")]
    for file in sorted(files, key=lambda item: item.name):
        for name, entry in json.loads(file.read_text(encoding="utf-8")).items():
            names = {key: tuple(entry.get(key, ())) for key in ("hub", "aliases")}
            found[name] = _Entry(entry["config"], entry["source"], **names)
    return found


@cache
def _squashed_names() -> dict[str, str]:
    """Every way to write a preset's name, squashed, and the preset it means."""
    known = {}
    for name, entry in _entries().items():
        for spelling in (*map(_plain, entry.hub), *entry.aliases, name):
            known[_squash(spelling)] = name
    return known


@cache
def _organisations(name: str) -> frozenset[str]:
    """Organisations under which the Hub has a preset, in small letters."""
    return frozenset(hub.partition("/")[0].lower() for hub in _entries()[name].hub)


@cache
def _preset_model(name: str) -> ModelSpec:
    """Build the model of one preset."""
    entry = _entries()[name]
    try:
        model = model_from_config(entry.config, name=name)
    except ModelError as error:
        raise ModelError(f"preset {name!r}: {error}") from None
    return replace(model, source=entry.source)


def _looks_like_path(text: str) -> bool:
    """Whether a string can only mean a file or directory."""
    marks = text.endswith((".json", "/")) or text.startswith(("/", "./", "../", "~"))
    return marks or text.count("/") > 1 or "\\" in text or text in (".", "..")


def _plain(name: str) -> str:
    """Return the name without organisation, in small letters and with hyphens."""
    last = name.strip().rsplit("/", 1)[-1].lower()
    return re.sub(r"[\s_-]+", "-", last)


def _squash(name: str) -> str:
    """Return the name without the characters that spellings differ in."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _stated_name(config: Mapping[str, Any]) -> str:
    """Return the name that a config states for itself, if any."""
    stated = config.get("_name_or_path")
    return stated.rsplit("/", 1)[-1] if isinstance(stated, str) and stated else "model"


_MIXERS = (AttentionSpec, RecurrenceSpec, ShortConvolutionSpec)


def model_from_record(record: Mapping[str, Any]) -> ModelSpec:
    """Return the model that a record describes.

    Parameters
    ----------
    record : mapping
        As `dataclasses.asdict` makes it, perhaps through JSON.

    Raises
    ------
    ModelError
        It is no such record.
    """
    try:
        return ModelSpec(
            **{
                **record,
                "layers": _layers(record["layers"]),
                "mtp_layers": _layers(record["mtp_layers"]),
                "extra": _pieces(record["extra"]),
                "towers": tuple(
                    TowerSpec(
                        **{
                            **tower,
                            "layers": _layers(tower["layers"]),
                            "extra": _pieces(tower["extra"]),
                        }
                    )
                    for tower in record["towers"]
                ),
                "quantization": _quantization(record["quantization"]),
                "adapters": _adapters(record.get("adapters")),
                "remarks": tuple(record["remarks"]),
            }
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"no record of a model: {error}") from None


def _adapters(record: Mapping[str, Any] | None) -> AdapterSpec | None:
    """Adapters; records of models before there were any name none."""
    return record and AdapterSpec(**{**record, "targets": tuple(record["targets"])})  # type: ignore[return-value]


def _quantization(record: Mapping[str, Any] | None) -> QuantizationSpec | None:
    if record is None:
        return None
    places = tuple(
        PlaceFormat(item["place"], WeightFormat(**item["format"]), tuple(item["layers"]))
        for item in record["places"]
    )
    return QuantizationSpec(record["method"], places)


def _layers(records: Iterable[Mapping[str, Any]]) -> tuple[LayerSpec, ...]:
    return tuple(
        LayerSpec(
            **{
                **record,
                "mixers": tuple(_mixer(part) for part in record["mixers"]),
                "mlps": tuple(MlpSpec(**_with_pieces(part)) for part in record["mlps"]),
                "extra": _pieces(record["extra"]),
            }
        )
        for record in records
    )


def _mixer(record: Mapping[str, Any]) -> Mixer:
    """Return the mixer whose fields the record names."""
    for kind in _MIXERS:
        if {field.name for field in dataclasses.fields(kind)} == set(record):
            fields = _with_pieces(record)
            for key, spec in (("indexer", IndexerSpec), ("compression", CompressionSpec)):
                if fields.get(key) is not None:
                    fields[key] = spec(**fields[key])
            return kind(**fields)
    raise KeyError(f"a mixer with the keys {', '.join(sorted(record))}")


def _with_pieces(record: Mapping[str, Any]) -> dict[str, Any]:
    return {**record, "extra": _pieces(record["extra"])}


def _pieces(records: Iterable[Mapping[str, Any]]) -> Pieces:
    return tuple(Piece(**record) for record in records)
