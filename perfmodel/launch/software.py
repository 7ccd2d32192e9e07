"""The programs that launch files are written for and read from, by name."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DataError, FormatError, StrategyError, did_you_mean
from perfmodel.base.facts import Run, text_of
from perfmodel.base.fields import facts_of
from perfmodel.base.files import read_text
from perfmodel.base.provenance import record_of
from perfmodel.base.strategy_fields import FIELDS
from perfmodel.base.units import format_gib, format_time
from perfmodel.launch import MODULES
from perfmodel.launch.describe import Launch, settled
from perfmodel.launch.reading import named
from perfmodel.launch.settings import NOTHING, Keys
from perfmodel.launch.table import holds, refuse
from perfmodel.launch.text import format_comment, format_toml, format_yaml, note_line, noted
from perfmodel.model.presets import find_preset, load_model, model_from_record
from perfmodel.model.spec import ModelSpec, run_of_model
from perfmodel.software.framework import (
    FRAMEWORKS,
    OF_MEASURED_RUNS,
    Framework,
    as_run,
    framework_of_record,
    load_framework,
)

if TYPE_CHECKING:
    from perfmodel.base.table import Table

READERS: Mapping[str, str] = {"nemo": "nemo", "nanotron": "nanotron"}
"""The same for software whose files are read only."""

# The order in which a text is tried: words of the first are words of none before it.
TRIED = (
    "primus",
    "nanotron",
    "deepspeed",
    "nemo",
    "megatron-bridge",
    "torchtitan",
    "maxtext",
    "megatron",
)

LARGEST = 2**22  # B of a launch file


def software_module(name: str) -> ModuleType:
    """Return the module of a software.

    Raises
    ------
    StrategyError
        There is none of that name.
    """
    known = {**MODULES, **READERS}
    if name not in known:
        raise StrategyError(f"unknown software '{name}'{did_you_mean(name, known)}")
    return import_module(f"perfmodel.launch.{known[name]}")


def software_title(name: str) -> str:
    """Return what a software calls itself."""
    return str(software_module(name).PROGRAM.title)


def software_preset(name: str) -> str:
    """Return the framework that a software is where nothing else is said."""
    return str(software_module(name).PROGRAM.preset)


def software_of(framework: str) -> str:
    """Return the software that a framework preset describes; Megatron-LM where it is none."""
    preset = framework.partition("[")[0]
    own = FRAMEWORKS[preset].software if preset in FRAMEWORKS else ""
    named = own if own in MODULES else "megatron"
    return next(
        (name for name in MODULES if preset in software_module(name).PROGRAM.presets), named
    )


def prepared(name: str, launch: Launch) -> tuple[Launch, list[str]]:
    """Return a launch as a software runs it, and what the user should know about that.

    The strategy has its plain form (`settled`); where it was projected as another framework,
    what overlaps is as this software's own preset has it.
    """
    module = software_module(name)
    program = module.PROGRAM
    notes = list(launch.remarks)
    framework = launch.framework
    preset = framework.name.partition("[")[0]
    if preset not in program.presets and software_of(preset) != name:
        notes.append(
            f"projected as {framework.name}; {program.title} overlaps and fuses otherwise: "
            "'perfmodel project --from' projects what is written here"
        )
        stated = framework.stage_split
        shipped = preset in FRAMEWORKS and stated == FRAMEWORKS[preset].stage_split
        # A layout that was asked for is the launch's, not the other software's.
        framework = load_framework(program.preset, **({} if shipped else {"stage_split": stated}))
    strategy = settled(launch.strategy, launch.model)
    precision, model = launch["precision"], launch.model
    least = Run(precision, False, 0) if model is None else run_of_model(model, precision)
    run = launch.run or least
    framework = as_run(framework, run)
    ready = replace(launch, strategy=strategy, framework=framework, run=run, remarks=())
    own = getattr(module, "notes", None)  # what no condition of its table can tell
    notes += own(ready) if own else []
    table = program.own.get("notes", ())
    return ready, notes + [item["text"] for item in table if holds(item["when"], ready)]


def format_launch(name: str, launch: Launch, header: Sequence[str] = ()) -> str:
    """Return the arguments or the file that start a run.

    Parameters
    ----------
    name : str
        One of `MODULES`.
    launch : Launch
    header : sequence of str
        Lines of its first comment: what it was made from.

    Raises
    ------
    StrategyError
        The software cannot run this strategy or model; names the field, its value, and what
        the software offers.
    """
    module = software_module(name)
    ready, _ = prepared(name, launch)
    refuse(module.PROGRAM, ready)
    places = {"nodes": ready.nodes, "each": ready.processes_per_node}
    head = [line.format(**places) for line in module.PROGRAM.own["head"]]
    body = getattr(module, "body", None)
    write = format_toml if name == "torchtitan" else format_yaml
    text: str = body(ready) if body else write(module.keys_of(ready))
    said = {"framework": ready.framework.name.partition("[")[0]}
    if ready.model is not None and find_preset(ready.model.name):
        said["model"] = ready.model.name
    lines = [*(" ".join(line.split()) for line in header), *head, note_line(said)]
    return format_comment(lines) + text


def not_held(name: str, launch: Launch) -> list[str]:
    """Return remarks on what a launch file cannot hold, or says otherwise when it is read.

    Parameters
    ----------
    name : str
        One of `MODULES`.
    launch : Launch
        From `prepared`.
    """
    try:
        text = format_launch(name, launch)
        read = _parsed(text, "the file", name)
    except FormatError as error:
        return [f"the file cannot be read back: {error}"]
    remarks = []
    if read.devices != launch.devices:
        remarks.append(f"the file does not say the devices: --devices {launch.devices} does")
        stated = {"devices": launch.devices}
        read = _parsed(text, "the file", name, stated)
    if launch.model is not None and _sizes(read.model) != _sizes(launch.model):
        remarks.append(f"the file does not say the model: --model {launch.model.name} does")
    model = launch.model
    mine = settled(launch.strategy, model)
    theirs = settled({**mine, **read.strategy}, model)
    for spec in FIELDS:
        if mine[spec.name] != theirs[spec.name]:
            said, other = text_of(mine[spec.name]), text_of(theirs[spec.name])
            remarks.append(f"the file says no {spec.option} {said}: it reads as {other}")
    return remarks + _facts_not_held(launch, read)


def _sizes(model: ModelSpec | None) -> tuple[Any, ...]:
    """Return what of a model counts in a projection."""
    if model is None:
        return ()
    learned = model.max_positions if model.position_embedding == "learned" else 0
    return model.layers, model.mtp_layers, model.vocab_size, model.tied_embeddings, learned


def _as_named(launch: Launch, name: str, module: ModuleType) -> Launch:
    """Return a launch with the model that its file names, where the file's keys say that one.

    They may have no word for some of it: which GELU, positions beyond the sequence.
    """
    model, preset = launch.model, find_preset(name) if name else None
    if model is None or preset is None or not launch.devices or model.name == preset:
        return launch
    known = load_model(preset, mtp="stated" if model.mtp_layers else "none")
    other = replace(launch, model=known)
    try:
        return other if module.keys_of(other) == module.keys_of(launch) else launch
    except StrategyError:
        return launch


def _facts_not_held(launch: Launch, read: Launch) -> list[str]:
    """Return remarks on facts of the software that a file does not hold."""
    wanted = launch.framework
    found = as_run(read.framework, launch.run) if launch.run else read.framework
    lost = [
        f"software.{name}={text_of(getattr(wanted, name))}"
        for name in facts_of(Framework)
        if name not in OF_MEASURED_RUNS and getattr(wanted, name) != getattr(found, name)
    ]
    return [f"the file does not say {', '.join(lost)}; --set does, beside --from"] if lost else []


def keys_of(name: str, launch: Launch) -> dict[str, Any]:
    """Return what a launch file states, key by key."""
    keys: dict[str, Any] = software_module(name).keys_of(prepared(name, launch)[0])
    return keys


def parse_launch(text: str, path: str, name: str = "", typed: Keys = NOTHING) -> tuple[str, Launch]:
    """Return the software that a text is for, and the launch that it describes.

    Parameters
    ----------
    text : str
    path : str
        What errors call the file.
    name : str
        Software; empty: told from the text.
    typed : mapping
        ``devices``, and fields of the strategy, that count in place of what the file says.

    Raises
    ------
    FormatError
        It is no launch file, or a key of it is wrong.
    """
    found = name or recognise(text)
    if not found:
        titles = ", ".join(software_title(item) for item in (*MODULES, *READERS))
        raise FormatError(f"{path}: no launch file; arguments or a file of {titles} is needed")
    return found, _parsed(text, path, found, typed, naming=True)


def _parsed(
    text: str, path: str, name: str, typed: Keys = NOTHING, *, naming: bool = False
) -> Launch:
    """Return the launch that a text of some software describes; naming its model is slow."""
    module = software_module(name)
    launch: Launch = module.parse_launch(text, path, typed)
    if naming:
        launch = replace(launch, model=named(launch.model))
    launch = _as_named(launch, noted(text).get("model", ""), module)
    said = noted(text).get("framework", "")
    if said in FRAMEWORKS and (said in module.PROGRAM.presets or software_of(said) == name):
        launch = replace(launch, framework=load_framework(said, **launch.facts))
    return launch


def recognise(text: str) -> str:
    """Return the software that a text looks like it is for; empty where it is for none."""
    for name in TRIED:
        alone = software_module(name).PROGRAM.own.get("told_alone", ())
        if any(re.search(pattern, text) for pattern in alone):
            return name
    for name in TRIED:
        table = software_module(name).PROGRAM.own
        said = sum(re.search(pattern, text) is not None for pattern in table["told_by"])
        if said >= table.get("told_least", 1):
            return name
    return ""


def read_launch(path: str | os.PathLike[str], typed: Keys = NOTHING) -> tuple[str, Launch]:
    """Read a launch file: see `parse_launch`."""
    return parse_launch(read_text(path, "a launch file", LARGEST), str(path), typed=typed)


def chosen_by(pick: int, source: str, by: str, where: str | None) -> str:
    """Return how a row was chosen, for the head of what starts it."""
    return f"number {pick} of {source} by {by}" + (f" where {where}" if where else "")


def launch_of_row(
    table: Table, row: Mapping[str, Any], source: str, chosen: str
) -> tuple[Launch, list[str]]:
    """Return the run of one strategy of a sweep, and lines that say what is projected of it.

    Parameters
    ----------
    table : Table
        The sweep.
    row : mapping
        Of `perfmodel.store.results.rows`.
    source, chosen : str
        What the sweep is called, and how the row was chosen.

    Raises
    ------
    DataError
        The results do not say what was swept.
    """
    try:
        provenance = json.loads(table.attrs["provenance"])
        model = model_from_record(record_of(provenance, "model", row.get("model")))
        facts = record_of(provenance, "framework", row.get("framework"))
        framework = framework_of_record(facts)
        machine = provenance["hardware"][row["hardware"]]
        system = machine["system"]
        network = system.get("network") or [{}]
        devices = int(row.get("devices", table.attrs["devices"]))
        # Of the record as it is: earlier versions had other constants.
        domain = int(network[0].get("size") or system.get("devices_per_node", 0))
        run = run_of_model(model, str(row["precision"]), domain, machine["device"]["name"])
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise DataError(
            f"'{source}' does not say what was swept ({error}); results written as .nc do"
        ) from None
    strategy = {spec.name: row[spec.name] for spec in FIELDS}
    launch = Launch(
        strategy,
        framework,
        model,
        devices,
        filled_nodes(devices, int(system.get("devices_per_node", 0))),
        filled_nodes(devices, int(network[0].get("size", 0))),
        run=run,
    )
    return launch, [
        f"{model.name} on {devices:,} devices of {row['hardware']}: {chosen}",
        f"projected as {framework.name}: {format_time(row['step_time'])} a step, "
        f"{row['tokens_per_second_per_device']:,.0f} tokens/s and device, "
        f"{100 * row['model_flops_utilization']:.1f} % model FLOPs utilization, "
        f"{format_gib(row['memory_total'])} a device",
    ]


def filled_nodes(devices: int, each: int) -> int:
    """Return the devices of a node: those of the profile where the run fills nodes."""
    return each if each and devices % each == 0 else devices
