"""The programs that launch files are written for and read from, by name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

from perfmodel.base.errors import FormatError, StrategyError, did_you_mean
from perfmodel.base.files import read_text
from perfmodel.launch.describe import Launch, settled
from perfmodel.launch.settings import refuse, refuse_offload
from perfmodel.software.framework import FRAMEWORKS, load_framework

MODULES: Mapping[str, str] = {
    "megatron": "megatron",
    "megatron-bridge": "megatron_bridge",
    "torchtitan": "torchtitan",
    "maxtext": "maxtext",
    "deepspeed": "deepspeed",
    "primus": "primus",
}
"""Name on the command line -> module of this package."""

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
    return str(software_module(name).TITLE)


def software_preset(name: str) -> str:
    """Return the framework that a software is where nothing else is said."""
    return str(software_module(name).PRESET)


def software_of(framework: str) -> str:
    """Return the software that a framework preset describes; Megatron-LM where it is none."""
    preset = framework.partition("[")[0]
    own = FRAMEWORKS[preset].software if preset in FRAMEWORKS else ""
    named = own if own in MODULES else "megatron"
    return next((name for name in MODULES if preset in software_module(name).PRESETS), named)


def prepared(name: str, launch: Launch) -> tuple[Launch, list[str]]:
    """Return a launch as a software runs it, and what the user should know about that.

    The strategy has its plain form (`settled`); where it was projected as another framework,
    what overlaps is as this software's own preset has it.
    """
    module = software_module(name)
    notes = list(launch.remarks)
    framework = launch.framework
    preset = framework.name.partition("[")[0]
    if preset not in module.PRESETS and software_of(preset) != name:
        notes.append(
            f"projected as {framework.name}; {module.TITLE} overlaps and fuses otherwise: "
            "'perfmodel project --from' projects what is written here"
        )
        stated = framework.stage_split
        own = preset in FRAMEWORKS and stated == FRAMEWORKS[preset].stage_split
        # A layout that was asked for is the launch's, not the other software's.
        framework = load_framework(module.PRESET, **({} if own else {"stage_split": stated}))
    strategy = settled(launch.strategy, launch.model)
    ready = replace(launch, strategy=strategy, framework=framework, remarks=())
    return ready, notes + list(module.notes(ready))


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
    refuse_offload(module.TITLE, ready)
    refuse(module.TITLE, ready, module.CHOICES, module.LIMITS)
    text: str = module.format_launch(ready, [" ".join(line.split()) for line in header])
    return text


def keys_of(name: str, launch: Launch) -> dict[str, Any]:
    """Return what a launch file states, key by key."""
    keys: dict[str, Any] = software_module(name).keys_of(prepared(name, launch)[0])
    return keys


def parse_launch(text: str, path: str, name: str = "", devices: int = 0) -> tuple[str, Launch]:
    """Return the software that a text is for, and the launch that it describes.

    Parameters
    ----------
    text : str
    path : str
        What errors call the file.
    name : str
        Software; empty: told from the text.
    devices : int
        Devices of the run where the file does not say; 0: unknown.

    Raises
    ------
    FormatError
        It is no launch file, or a key of it is wrong.
    """
    found = name or recognise(text)
    if not found:
        titles = ", ".join(software_module(item).TITLE for item in (*MODULES, *READERS))
        raise FormatError(f"{path}: no launch file; arguments or a file of {titles} is needed")
    return found, software_module(found).parse_launch(text, path, devices)


def recognise(text: str) -> str:
    """Return the software that a text looks like it is for; empty where it is for none."""
    return next((name for name in TRIED if software_module(name).recognises(text)), "")


def read_launch(
    path: str | os.PathLike[str], name: str = "", devices: int = 0
) -> tuple[str, Launch]:
    """Read a launch file: see `parse_launch`."""
    return parse_launch(read_text(path, "a launch file", LARGEST), str(path), name, devices)
