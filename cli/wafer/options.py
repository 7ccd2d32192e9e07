"""Options of wafers that several commands share, and the systems of nodes that they name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.shared.options import options_of, stack

if TYPE_CHECKING:
    from perfmodel.model.spec import ModelSpec
    from perfmodel.wafer.setting import CoreSetting
    from perfmodel.wafer.system import WaferSystem


def complete_meshes(ctx: Any, param: Any, incomplete: str) -> list[Any]:
    """Complete the name of a mesh that ships."""
    from click.shell_completion import CompletionItem

    from perfmodel.hwprofiles import list_meshes

    return [CompletionItem(name) for name in list_meshes() if name.startswith(incomplete)]


BYTES = {"fp16": 2.0, "bf16": 2.0, "fp8": 1.0}
DEGREES = {
    "dp_attention": "data_parallel",
    "tp": "tensor_parallel",
    "sp": "sequence_parallel",
    "ep": "expert_parallel",
    "tp_ffn": "ffn_tensor_parallel",
    "dp_ffn": "ffn_data_parallel",
    "pp": "pipeline_parallel",
    "shared_copies": "shared_copies",
}
"""Degrees of a system, by the options that state them."""
GRIDS = ("node_grid", "core_grid")
WORDS = (*DEGREES, *GRIDS, "expert_exchange")

system_options = options_of("wafer.systems", "system", *WORDS)
"""A system, from the generator's file or by its degrees."""

tokens_options = options_of("wafer.systems", "batch", "isl", "osl", "speculative")

elements_options = stack(
    options_of("wafer.systems", "routing", "seed"),
    options_of(
        "wafer.systems",
        "precision",
        "weight_precision",
        "cache_precision",
        type=click.Choice(list(BYTES)),
    ),
)
"""Experts of tokens, and bytes of elements."""


def core_setting(
    model: ModelSpec, system: WaferSystem, phase: str, options: Mapping[str, Any]
) -> CoreSetting:
    """Return what `tokens_options` and `elements_options` ask of a phase of a model."""
    from perfmodel.wafer.setting import CoreSetting

    sizes = (options[word] for word in ("batch", "isl", "speculative"))
    return CoreSetting(model, system, phase, *sizes, **element_bytes(options))


def element_bytes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bytes of weights, activations and cache that `elements_options` name."""
    precision = options["precision"]
    return {
        "weight_bytes": BYTES[options["weight_precision"] or precision],
        "activation_bytes": BYTES[precision],
        "cache_bytes": BYTES[options["cache_precision"] or precision],
    }


def read_grid(name: str, text: str) -> tuple[int, int]:
    """Read rows and columns from text such as ``6x6``."""
    rows, _, columns = text.lower().partition("x")
    if not (rows.isascii() and columns.isascii() and rows.isdigit() and columns.isdigit()):
        raise click.UsageError(f"--{name.replace('_', '-')}: rows x columns, as 6x6, not '{text}'")
    return int(rows[:9]), int(columns[:9])


def given_system(options: Mapping[str, Any], phase: str) -> WaferSystem:
    """Return the system that options name, of a phase.

    Raises
    ------
    FormatError, StrategyError
        No such file, or degrees and grids that contradict one another.
    """
    from perfmodel.base.errors import FormatError
    from perfmodel.wafer.generator_files import read_systems
    from perfmodel.wafer.system import given_system as system_of_degrees

    stated = [word for word in WORDS if options.get(word) is not None]
    file = options["system_file"]
    if file is not None:
        if stated:
            raise click.UsageError(
                f"--{stated[0].replace('_', '-')} stands beside --system, whose file says it"
            )
        systems = read_systems(file)
        if phase not in systems:
            raise FormatError(f"{file}: has no block '{phase}'; it has {', '.join(systems)}")
        return systems[phase]
    fields: dict[str, Any] = {DEGREES[word]: options[word] for word in stated if word in DEGREES}
    for word in GRIDS:
        if options[word] is not None:
            fields[word] = read_grid(word, options[word])
    if options["expert_exchange"] is not None:
        fields["expert_exchange"] = options["expert_exchange"]
    return system_of_degrees(**fields)


def tell_routing(options: Mapping[str, Any], system: WaferSystem) -> None:
    """Say what stands for the counts that a file of the generator leaves out."""
    from perfmodel.cli.shared.printing import remark

    if options["system_file"] and system.routing == "two_level" and not options["routing"]:
        remark(
            "experts: 'two_level', fitted to the counts of the generator's 'empirical_mmlu', "
            "stands for them; --routing empirical:bincounts.json takes the counts themselves"
        )


def chosen_nodes(text: str, nodes: int) -> list[int]:
    """Read node numbers from ``all`` or a list such as ``0-3,7``.

    Raises
    ------
    StrategyError
        A node that is not there.
    """
    from perfmodel.base.errors import StrategyError

    if text == "all":
        return list(range(nodes))
    found: dict[int, None] = {}
    for item in text.split(","):
        first, dash, last = item.strip().partition("-")
        last = last if dash else first
        if not (first.isascii() and last.isascii() and first.isdigit() and last.isdigit()):
            raise click.UsageError(f"--nodes: all, or numbers such as 0-3,7, not '{text}'")
        begin, end = int(first[:9]), int(last[:9])
        if end >= nodes or begin > end:
            raise StrategyError(
                f"key 'nodes': '{item.strip()}' is not among the nodes 0 to {nodes - 1}"
            )
        found |= dict.fromkeys(range(begin, end + 1))
    return list(found)


def chosen_steps(text: str, count: int) -> list[int]:
    """Read steps of decoding from ``all``, ``ends`` or a list such as ``0,9``.

    Raises
    ------
    StrategyError
        A step that is not made.
    """
    from perfmodel.base.errors import StrategyError

    if text == "all":
        return list(range(count))
    if text == "ends":
        return sorted({0, count - 1})
    found = []
    for item in text.split(","):
        word = item.strip().removeprefix("decode")
        if not (word.isascii() and word.isdigit()):
            raise click.UsageError(f"--steps: all, ends, or numbers such as 0,9, not '{text}'")
        if int(word[:9]) >= count:
            raise StrategyError(f"key 'steps': {item.strip()} is not among steps 0 to {count - 1}")
        found.append(int(word[:9]))
    return list(dict.fromkeys(found))


def asked_steps(options: Mapping[str, Any], phase: str) -> list[int]:
    """Return the steps that ``--steps`` names; prompts are one."""
    return chosen_steps(options["steps"], options["osl"]) if phase == "decode" else [0]


def chosen_layers(text: str) -> list[str] | None:
    """Read names of layers from ``all`` (None) or a list such as ``decode5,lm_head``."""
    return None if text == "all" else text.split(",")
