"""Workers of a served model as launch commands say it: written, read, recognised.

A command starts one worker. What it leaves out is the engine's own default, so only what was
chosen is written; reading, what is absent stays absent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

from perfmodel.base.errors import FormatError, StrategyError, did_you_mean
from perfmodel.base.files import read_text
from perfmodel.launch.shell import format_comment
from perfmodel.software.engine import SPELLINGS, load_engine

MODULES: Mapping[str, str] = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt_llm"}
"""Engine (`perfmodel.software.engine`) -> module of this package."""

LARGEST = 2**22  # B of a launch file
DEGREES = (
    "tensor_parallel",
    "pipeline_parallel",
    "expert_parallel",
    "attention_data_parallel",
)
SHARED = (
    "weight_precision",
    "kv_precision",
    "token_budget",
    "max_sequences",
    "block_tokens",
    "memory_share",
    "draft_length",
)
"""Other fields of a deployment that commands state."""
LEFT_OUT: tuple[Any, ...] = (None, 0, "", "stated")
"""Values of fields that leave a choice to the engine."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Workers alike of one engine.

    Attributes
    ----------
    engine : str
        One of `MODULES`.
    model : str
        As a server takes it: a name on the Hugging Face Hub, or a folder; empty if unknown.
    fields : mapping of str to int, float, bool or str
        Deployment fields (`perfmodel.serving.fields`), and ``context_length`` [tokens],
        ``prefix_caching``, ``drafts`` ("mtp", "eagle3", "ngram"); what is absent is the
        engine's default. Sequences and tokens count per attention rank.
    part : {"", "prefill", "decode"}
        What the workers do where the two are apart.
    count : int
        How many there are.
    remarks : tuple of str
        What a reader could not take as it stands.
    """

    engine: str
    model: str
    fields: Mapping[str, Any]
    part: str = ""
    count: int = 1
    remarks: tuple[str, ...] = field(default=())

    def __getitem__(self, name: str) -> Any:
        """Return a field; 1 for a degree and None for another that is left to the engine."""
        value = self.fields.get(name, 1 if name in DEGREES else None)
        return None if value in LEFT_OUT and name not in DEGREES else value

    @property
    def stage_devices(self) -> int:
        """Devices of a pipeline stage: what engines without data parallelism call TP."""
        return int(self["tensor_parallel"] * self["attention_data_parallel"])


def workers_of(row: Mapping[str, Any], model: str) -> list[Workers]:
    """Return the pools of a deployment: one, or a prefill and a decode pool.

    Parameters
    ----------
    row : mapping of str to value
        Fields of a deployment and of a load, as `perfmodel.store.results.best` gives them.
    model : str
        As a server takes it.
    """
    engine = load_engine(str(row["engine"]).partition("[")[0]).engine
    fields = {name: row[name] for name in (*DEGREES, *SHARED) if row.get(name) not in LEFT_OUT}
    lengths = row.get("input_length"), row.get("output_length")
    if all(lengths):
        fields["context_length"] = int(sum(map(int, filter(None, lengths))))
    count, first = int(row.get("workers") or 1), int(row.get("prefill_workers") or 0)
    if not first:
        return [Workers(engine, model, fields, "", count)]
    prompts = fields | {name: row.get(f"prefill_{name}") or row[name] for name in DEGREES}
    prompts.pop("draft_length", None)
    return [
        Workers(engine, model, prompts, "prefill", first),
        Workers(engine, model, fields, "decode", count),
    ]


def engine_module(name: str) -> ModuleType:
    """Return the module of an engine.

    Raises
    ------
    StrategyError
        There is none of that name.
    """
    plain = SPELLINGS.get(name, name)
    if plain not in MODULES:
        known = (*MODULES, *SPELLINGS)
        raise StrategyError(f"unknown engine '{name}'{did_you_mean(name, known)}")
    return import_module(f"perfmodel.launch.{MODULES[plain]}")


def format_served(pools: Sequence[Workers], header: Sequence[str] = ()) -> str:
    """Return the commands that start one worker of each pool, and what joins the pools.

    Parameters
    ----------
    pools : sequence of Workers
        One, or a prefill and a decode pool, of one engine.
    header : sequence of str
        Lines of the first comment.

    Raises
    ------
    StrategyError
        The engine cannot run such workers; names the field, its value, and what it offers.
    """
    module = engine_module(pools[0].engine)
    parts = [format_comment(header)] if header else []
    for pool in pools:
        _refuse(module, pool)
        if pool.part or pool.count > 1:
            what = f"{pool.part} worker".strip()
            parts.append(f"# {what}, {pool.count} of them\n" if pool.count > 1 else f"# {what}\n")
        parts.append(module.format_worker(pool))
    if len(pools) > 1:
        parts.append(format_comment(module.JOINED))
    return "".join(parts)


def _refuse(module: ModuleType, pool: Workers) -> None:
    for fields, broken, offers in module.LIMITS:
        if broken(pool):
            asked = ", ".join(f"{name} {pool[name]}" for name in fields)
            raise StrategyError(f"{module.TITLE} cannot do {asked}: {offers}")


def parse_served(text: str, path: str, engine: str = "") -> Workers:
    """Return the workers that a command or a script starts.

    Parameters
    ----------
    text : str
    path : str
        What errors call the file.
    engine : str
        One of `MODULES`; empty: told from the text.

    Raises
    ------
    FormatError
        No engine is started there, or an option has a wrong value.
    """
    found = SPELLINGS.get(engine, engine) or recognise_engine(text)
    if not found:
        starts = ", ".join(f"'{engine_module(name).START}'" for name in MODULES)
        raise FormatError(f"{path}: no command that starts a server; one of {starts} is needed")
    workers: Workers = engine_module(found).parse_worker(text, path)
    return workers


def recognise_engine(text: str) -> str:
    """Return the engine that a text starts; empty where it starts none."""
    return next((name for name in MODULES if engine_module(name).PROGRAM.search(text)), "")


def read_served(path: str | os.PathLike[str], engine: str = "") -> Workers:
    """Read a launch command from a file: see `parse_served`."""
    return parse_served(read_text(path, "a launch command", LARGEST), str(path), engine)
