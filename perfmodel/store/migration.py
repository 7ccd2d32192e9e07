"""Stored results of earlier schema versions, brought to the present one as they are opened.

A version is ``MAJOR.MINOR``, of each subject's own (`perfmodel.store.subject.Subject.schema`).
A minor version adds to the layout or says again what a column holds; each has one step here, which
fills in what files before it lack and is exactly known, and nothing else: a sweep of a version
that knew no offloading has shares of zero, one that knew no bands still has none. Numbers that a
file holds are never computed anew. A major version is another layout, which only
its own perfmodel reads.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError
from perfmodel.base.fields import Field
from perfmodel.base.served_fields import DEPLOYMENT_FIELDS, UNITS
from perfmodel.base.strategy_fields import FIELDS
from perfmodel.base.table import Column, Table, flags
from perfmodel.kernels.variables import VARIABLES
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import LayerSpec, MlpSpec
from perfmodel.model.spec import ModelSpec
from perfmodel.store.subject import SENSITIVITY, SERVING, TRAINING, subject_of

MIGRATED_FROM = "migrated_from"
"""Attribute with the version that a file had, of results that were brought to this one."""
KINDS: Mapping[str, type] = {"mixers": AttentionSpec, "mlps": MlpSpec}
FORMER_LAYER = {"mixers": "attention", "mlps": "mlp"}
"""Parts of a layer of which records of 1.1's first days have one, under another name."""


def to_present(table: Table, source: object) -> Table:
    """Return stored results in the layout of the present schema.

    Parameters
    ----------
    table : Table
        As it was stored; changed in place.
    source : object
        The file, for messages.

    Raises
    ------
    DataError
        No results of perfmodel, or of a newer major version.
    """
    subject = subject_of(table)
    text = str(table.attrs.get("schema_version", ""))
    parts = re.fullmatch(r"(\d{1,9})\.(\d{1,9})", text)
    if parts is None or subject.required - set(table.variables):
        raise DataError(
            f"'{source}' is not a perfmodel sweep "
            f"(schema version {text or 'absent'}, expected {subject.schema} or older)"
        )
    version, present = (int(parts[1]), int(parts[2])), _numbers(subject.schema)
    if version[0] != present[0]:
        raise DataError(
            f"'{source}' has results of schema {text}, and this perfmodel reads "
            f"{present[0]}.x: "
            + ("a newer perfmodel reads it" if version > present else "sweep again")
        )
    for number, steps in STEPS.get(subject.verb, {}).items():
        if version < (present[0], number):
            for step in steps:
                step(table)
    if version < present:
        table.attrs[MIGRATED_FROM] = text
        table.attrs["schema_version"] = subject.schema
    return table


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")
    return int(major), int(minor)


# ---------------------------------------------------------------- steps of training, to 1.3


def _fill_fields(table: Table) -> None:
    """Add the strategy fields that did not exist, with the value that every run then had."""
    coords = dict(table.coords)
    for spec in FIELDS:
        if spec.name not in table:
            coords[spec.name] = _everywhere(spec, "strategy", table.sizes["strategy"])
    # In the order of the fields, as a sweep has them, and as tables show them.
    order = [it for it in table.sizes if it in coords] + [it.name for it in FIELDS]
    table.coords.clear()
    table.coords.update({name: coords.pop(name) for name in order} | coords)


def _fill_deployments(table: Table) -> None:
    """Add the fields of deployments that nobody could state."""
    for spec in DEPLOYMENT_FIELDS:
        if spec.name not in table and spec.kind in ("int", "float"):
            table.coords[spec.name] = _everywhere(
                spec, "deployment", table.sizes["deployment"], UNITS.get(spec.name, "1")
            )


def _everywhere(spec: Field, along: str, count: int, units: str = "1") -> Column:
    """Return a field's default as the coordinate of all strategies, or deployments."""
    attributes: dict[str, Any] = {"units": units, "long_name": spec.description}
    value, kind = spec.default, "f8"
    if spec.kind == "int":
        kind = "i4"
    elif spec.kind != "float":
        labels = spec.choices or ("false", "true")
        value, kind = labels.index(str(value).lower()), "i1"
        attributes |= flags(labels)
    return Column(along, np.broadcast_to(np.asarray(value, kind), (count,)), attributes)


def _fill_parts(table: Table) -> None:
    """Add the components of time and memory that were zero, so that parts add up to wholes.

    What the allocator held of no use was counted in `memory_reserve`, and still is there.
    """
    like = table["step_time"]
    for name in ("offload_exposed", "memory_fragmentation", "memory_host", "memory_nvme"):
        if name in table:
            continue
        about = VARIABLES[name]
        attributes = {"units": about.units, "long_name": about.long_name}
        shape = tuple(table.sizes[dim] for dim in like.dims)
        kind = like.stored_dtype or like.values.dtype
        table[name] = Column(like.dims, np.broadcast_to(np.zeros((), kind), shape), attributes)


def _fill_tight(table: Table) -> None:
    """Say what is tight in memory, where a file has the 90th percentile; read when it is used."""
    if "memory_high" not in table or "tight" in table:
        return
    parts = [table[name] for name in ("fits", "memory_high", "memory_capacity")]

    def read(at: Mapping[str, Any]) -> NDArray[np.bool_]:
        fits, high, capacity = (column.take(at).values for column in parts)
        return fits.astype(bool) & (high > capacity)

    attributes = VARIABLES["tight"].attributes()
    kind = np.dtype(np.bool_)
    table["tight"] = Column(parts[0].dims, attrs=attributes, read=read, stored_dtype=kind)


def _complete_records(table: Table) -> None:
    """Bring what is kept of models and software to the names that they have now."""
    try:
        found = json.loads(table.attrs["provenance"])
        models = _records(found["model"])
        software = _records(found["framework"])
        for record in models:
            _complete_model(record)
        for record in software:
            # One copy of a token per rank and node, which names how tokens travel since.
            once = record.pop("deduplicated_dispatch", None)
            if once is not None and "expert_dispatch" not in record:
                record["expert_dispatch"] = "deepep" if once else "all_to_all"
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return  # who needs a record says that there is none
    table.attrs["provenance"] = json.dumps(found)
    counts = [len(record["mtp_layers"]) for record in models]
    table.attrs.setdefault("mtp_layers", counts[0] if len(counts) == 1 else counts)


def _records(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the records of one or several, which are in one mapping."""
    return [found] if isinstance(found.get("name"), str) else list(found.values())  # type: ignore[list-item]


def _complete_model(record: dict[str, Any]) -> None:
    """Give a model's record the keys that it lacks, of the value that every model then had."""
    for layer in [*record["layers"], *record["mtp_layers"]]:
        for name, kind in KINDS.items():
            if name not in layer:
                layer[name] = [layer.pop(FORMER_LAYER[name])]
            for part in layer[name]:
                # Mixers of other kinds than attention have had all their keys from the start.
                if kind is MlpSpec or "key_value_heads" in part:
                    _complete(part, kind)
        _complete(layer, LayerSpec)
    _complete(record, ModelSpec)


def _complete(record: dict[str, Any], kind: type) -> None:
    """Add the fields of a class that a record lacks and that have a default."""
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            record.setdefault(field.name, field.default)


Step = Callable[[Table], None]
STEPS: Mapping[str, Mapping[int, tuple[Step, ...]]] = {
    TRAINING.verb: {
        1: (),  # added step_time_low and step_time_high, which earlier files cannot have
        2: (_fill_fields, _fill_parts, _complete_records),
        3: (_fill_tight,),
    },
    SERVING.verb: {
        1: (),  # added constants_trust, and 2 tight: earlier files have neither
        2: (),
        3: (_fill_deployments,),
    },
    SENSITIVITY.verb: {1: ()},  # added low_tight and high_tight
}
"""By command and minor version: what files before that version go through, in this order."""
