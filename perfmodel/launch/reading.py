"""The end of reading a launch file: what depends on the number of devices and on other fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from perfmodel.launch.describe import Launch, known_as, settled
from perfmodel.launch.settings import Keys, Settings, refuse_unknown, remark_unread
from perfmodel.launch.table import Program
from perfmodel.model.build import ModelSpec
from perfmodel.model.presets import preset_names
from perfmodel.software.framework import FRAMEWORKS, Framework, load_framework
from perfmodel.strategy.fields import FIELDS

DEGREES = ("tensor_parallel", "context_parallel", "pipeline_parallel")


def with_replicas(settings: Settings, strategy: Keys, devices: int, sets: str = "") -> Keys:
    """Return a strategy with its data-parallel degree and shard sets, as devices allow.

    Parameters
    ----------
    settings : Settings
    strategy : dict
        With the other degrees.
    devices : int
        0 where a file does not say.
    sets : str
        Key that says how many shard sets there are; empty: none.

    Raises
    ------
    FormatError
        The degrees do not divide the devices, or the shard sets the ranks.
    """
    product = 1
    for name in DEGREES:
        product *= strategy.get(name, 1)
    count = settings.whole(sets, 1) if sets else 1
    if devices % product:
        keys = [settings.fields[name] for name in DEGREES if name in settings.fields]
        raise settings.contradiction(
            f"{devices} devices: should be a multiple of the degrees' product {product}", *keys
        )
    if not devices:
        if count > 1:
            settings.remark(
                f"{settings.name(sets)} {count}: the file does not say how many devices there "
                "are; --shard-group says how many share a shard set"
            )
        return strategy
    strategy = {**strategy, "data_parallel": devices // product}
    ranks = strategy["data_parallel"] * strategy.get("context_parallel", 1)
    if ranks % count:
        raise settings.wrong(sets, f"a divisor of data × context degrees = {ranks}")
    if count > 1:
        strategy["shard_group"] = ranks // count
    return strategy


def finished(
    settings: Settings,
    strategy: Keys,
    facts: Mapping[str, Any],
    model: ModelSpec | None,
    program: Program,
    *,
    devices: int,
    devices_per_node: int = 0,
    domain: int = 0,
    presets: Iterable[str] = (),
    closed: Mapping[str, Iterable[str]] | None = None,
) -> Launch:
    """Return the launch that was read.

    Parameters
    ----------
    settings : Settings
    strategy : dict
        Fields as read.
    facts : mapping
        Facts of the framework that came with them.
    model : ModelSpec or None
    program : Program
        Its software facts count where they matter, its watched keys where nothing read them.
    devices, devices_per_node, domain : int
        0 where a file does not say.
    presets : iterable of str
        Frameworks that the software may be; default: those of the program.
    closed : mapping
        Sections of which all keys are known: see `refuse_unknown`.

    Raises
    ------
    FormatError
        A key is none, or batches do not fit together.
    """
    presets = tuple(presets) or program.presets
    spelled = (key for item in program.software for words in item.spellings for key in words.keys)
    refuse_unknown(settings, {*program.watched, *spelled}, closed)
    _check_batches(settings, strategy)
    model = _named(model)
    if "data_parallel" in strategy and {"global_batch_size", "sequence_length"} <= set(strategy):
        strategy = settled(strategy, model)
    complete = {spec.name: strategy.get(spec.name, spec.default) for spec in FIELDS}
    base = Launch(complete, FRAMEWORKS[presets[0]], model, devices)
    found = {
        choice.field: choice.find(settings).value
        for choice in program.software
        if choice.matters(base)
    }
    framework = nearest_framework(presets, {**facts, **found})
    remark_unread(settings, program.watched)
    return Launch(
        strategy,
        framework,
        model,
        devices,
        devices_per_node,
        domain,
        remarks=tuple(dict.fromkeys(settings.remarks)),
    )


def _check_batches(settings: Settings, strategy: Mapping[str, Any]) -> None:
    """Refuse a global batch that replicas cannot share in micro-batches."""
    names = ("global_batch_size", "micro_batch_size", "data_parallel")
    if set(names) <= set(strategy):
        total, micro, replicas = (strategy[name] for name in names)
        if total % (micro * replicas):
            keys = [settings.fields[name] for name in names if name in settings.fields]
            raise settings.contradiction(
                f"{replicas} replicas: the batch should be a multiple of {micro * replicas}", *keys
            )


def _named(model: ModelSpec | None) -> ModelSpec | None:
    """Return a model under the name of the preset that has its layers, where one has."""
    name = known_as(model, {name: name for name in preset_names()})
    return model if model is None or name is None else replace(model, name=name)


def nearest_framework(presets: Iterable[str], facts: Mapping[str, Any]) -> Framework:
    """Return the preset that fits stated facts best, the first of equals, with those facts."""

    def changes(name: str) -> int:
        return sum(getattr(FRAMEWORKS[name], key) != value for key, value in facts.items())

    return load_framework(min(presets, key=changes), **facts)
