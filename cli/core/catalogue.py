"""What there is to choose: ``perfmodel hardware``, profiles; ``perfmodel software``, presets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from perfmodel.cli.group import CommandGroup
from perfmodel.cli.shared import completions, options
from perfmodel.cli.shared.inputs import load_one_engine, load_software
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import heading, print_json, say, table

if TYPE_CHECKING:
    from perfmodel.base.facts import When
    from perfmodel.base.fields import Field
    from perfmodel.hwprofiles import Hardware
    from perfmodel.hwprofiles.mesh import MeshHardware
    from perfmodel.software.engine import Engine
    from perfmodel.software.framework import Framework


@click.group(
    "hardware", **page("core", "hardware", "List and show hardware profiles.", CommandGroup)
)
def hardware_group() -> None:
    """List the hardware profiles and show what they say, with the source of every number."""


@hardware_group.command("list", **page("core", "hardware list", "Name the profiles."))
@options.options_of("core.hardware", "all")
@options.json_option
@options.verbosity_options
def list_hardware(everything: bool, as_json: bool) -> None:
    """Name the hardware profiles that ship, with their main figures."""
    from perfmodel.base.units import GIB
    from perfmodel.hwprofiles import list_hardware, list_meshes, load_hardware, load_mesh

    names = list_hardware()
    parts = [name for name in list_hardware(all=True) if name not in names] if everything else []
    profiles = [load_hardware(name) for name in names]
    meshes = [load_mesh(name) for name in list_meshes()]
    if as_json:
        print_json(_list_document(profiles, parts, meshes))
        return
    rows = [
        [
            hardware.name,
            hardware.device.name,
            _tera(hardware.device.peak_flops.get("bf16")),
            f"{hardware.device.memory.capacity / GIB:.1f}",
            f"{hardware.device.memory.bandwidth / 1e12:.2f}",
            str(hardware.system.devices_per_node),
            ", ".join(alias for alias in hardware.aliases[:3]),
        ]
        for hardware in profiles
    ]
    headers = ["profile", "device", "bf16 TFLOP/s", "GiB", "TB/s", "per node", "also called"]
    click.echo(table(headers, rows, left=(0, 1, 6)))
    click.echo("\n" + heading("meshes of cores"))
    headers = ["mesh", "cores", "rows x columns", "KiB", "B/cycle", "16-bit TFLOP/s", "chips", ""]
    click.echo(table(headers, [_mesh_row(mesh) for mesh in meshes], left=(0, 7)))
    if parts:
        click.echo(f"\nfamilies and chips, for 'extends' in a profile: {', '.join(parts)}")


@hardware_group.command("show", **page("core", "hardware show", "Show one profile."))
@click.argument("name", metavar="NAME|PATH", shell_complete=completions.complete_hardware)
@options.set_option
@options.json_option
@options.verbosity_options
def show_hardware(name: str, settings: Mapping[str, Any], as_json: bool) -> None:
    """Show every value of a profile by the path that --set and --sweep take."""
    from perfmodel.hwprofiles import load_hardware, load_mesh
    from perfmodel.hwprofiles.mesh import MeshHardware
    from perfmodel.hwprofiles.mesh_loader import names_mesh
    from perfmodel.kernels.variables import SCHEMA_VERSION

    hardware: Hardware | MeshHardware
    if names_mesh(name):
        hardware = load_mesh(name, settings)
    else:
        hardware = load_hardware(name, settings)
    if as_json:
        document = {"schema_version": SCHEMA_VERSION} | hardware.to_dict()
        if not isinstance(hardware, MeshHardware):
            from perfmodel.sweeps.trust import trust_document

            document["constants_trust"] = trust_document(hardware)
        print_json(document)
        return
    click.echo(heading(f"{hardware.name}: {hardware.title}"))
    if hardware.aliases:
        say(f"also called {', '.join(hardware.aliases)}", 12)
    for note in hardware.notes:
        say(f"note: {note}", 6)
    if not isinstance(hardware, MeshHardware):
        from perfmodel.sweeps.trust import trust_words

        say(f"constants {trust_words(hardware)}", 10)
    click.echo()
    rows = _mesh_rows(hardware) if isinstance(hardware, MeshHardware) else _value_rows(hardware)
    click.echo(table(["path", "value", "unit", "source"], rows, left=(0, 2, 3)))


def _tera(rate: float | None) -> str:
    return "–" if rate is None else f"{rate / 1e12:,.0f}"


def _mesh_row(mesh: MeshHardware) -> list[str]:
    rate = 2.0 * mesh.cores * mesh.clock * mesh.macs_per_cycle.get("fp16", 0.0)
    return [
        mesh.name,
        f"{mesh.cores:,}",
        f"{mesh.rows} x {mesh.columns}",
        f"{mesh.sram_per_core / 1024:.0f}",
        f"{mesh.link_width:g}",
        _tera(rate),
        str(mesh.chips),
        mesh.title,
    ]


def _list_document(
    profiles: list[Hardware], parts: list[str], meshes: list[MeshHardware]
) -> dict[str, Any]:
    from perfmodel.kernels.variables import SCHEMA_VERSION

    return {
        "schema_version": SCHEMA_VERSION,
        "hardware": [
            {
                "name": hardware.name,
                "title": hardware.title,
                "device": hardware.device.name,
                "vendor": hardware.device.vendor,
                "peak_flops": hardware.device.peak_flops,
                "memory_capacity": hardware.device.memory.capacity,
                "memory_bandwidth": hardware.device.memory.bandwidth,
                "devices_per_node": hardware.system.devices_per_node,
                "aliases": list(hardware.aliases),
            }
            for hardware in profiles
        ],
        "parts": parts,
        "meshes": [
            {
                "name": mesh.name,
                "title": mesh.title,
                "cores": mesh.cores,
                "rows": mesh.rows,
                "columns": mesh.columns,
                "chips": mesh.chips,
                "clock": mesh.clock,
                "sram_per_core": mesh.sram_per_core,
                "link_width": mesh.link_width,
                "macs_per_cycle": dict(mesh.macs_per_cycle),
                "dram_bandwidth": mesh.dram_bandwidth,
                "aliases": list(mesh.aliases),
            }
            for mesh in meshes
        ],
    }


def _value_rows(hardware: Hardware) -> list[list[str]]:
    """Return path, value, unit and source of every value."""
    from perfmodel.hwprofiles import known_paths

    rows = []
    for path, field in known_paths(hardware).items():
        value = hardware.value(path)
        unit, source = field.unit, hardware.source.get(path, "")
        if path.startswith("calibration."):
            _, group, key = path.split(".", 2)
            entry = hardware.calibration[group][key]
            unit = entry.unit
            source = f"fit {entry.fit}: {entry.source}" if entry.fit else entry.source
        shown = f"{value:.6g}" if isinstance(value, float) else str(value).lower()
        rows.append([path, shown if not isinstance(value, str) else value, unit, _short(source)])
    return rows


def _mesh_rows(mesh: MeshHardware) -> list[list[str]]:
    """Return path, value, unit and source of every value of a mesh of cores."""
    from perfmodel.hwprofiles import mesh_paths

    return [
        [path, f"{mesh.value(path):.6g}", field.unit, _short(mesh.source.get(path, ""))]
        for path, field in mesh_paths(mesh).items()
    ]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 100 else line[:99] + "…"


@click.group(
    "software", **page("core", "software", "List and show frameworks and engines.", CommandGroup)
)
def software_group() -> None:
    """List the presets of --framework and --engine and show what each decides, with sources."""


@software_group.command("list", **page("core", "software list", "Name the presets."))
@options.json_option
@options.verbosity_options
def list_software(as_json: bool) -> None:
    """Name the presets of --framework and the engines of --engine, and what each is."""
    from perfmodel.kernels.variables import SCHEMA_VERSION
    from perfmodel.software import engine, framework

    if as_json:
        software = [{"name": name, "title": text} for name, text in framework.TITLES.items()]
        engines = [
            {"name": name, "engine": engine.ENGINES[name].engine}
            | {"since": engine.ENGINES[name].since, "title": text}
            for name, text in engine.TITLES.items()
        ]
        found = {"schema_version": SCHEMA_VERSION, "software": software, "engines": engines}
        print_json(found)
        return
    presets = [list(item) for item in framework.TITLES.items()]
    click.echo(table(["preset", "what it is"], presets, left=(0, 1)))
    click.echo()
    rows = [[name, engine.ENGINES[name].since, text] for name, text in engine.TITLES.items()]
    click.echo(table(["engine", "since", "what it is"], rows, left=(0, 1, 2)))


@software_group.command("show", **page("core", "software show", "Show one preset."))
@click.argument("name", metavar="NAME", shell_complete=completions.complete_software)
@options.software_set_option
@options.json_option
@options.verbosity_options
def show_software(name: str, settings: Mapping[str, Any], as_json: bool) -> None:
    """Show every value of a preset or an engine by the path that --set takes."""
    from perfmodel.kernels.variables import SCHEMA_VERSION

    shown = _found(name, settings)
    if as_json:
        values = {
            key: {
                "value": getattr(shown.software, key),
                "units": fact.unit or "1",
                "meaning": fact.description,
                "choices": fact.choices,
                "settable": key not in shown.told,
                "source": shown.source.get(key, "not stated: the default"),
            }
            for key, fact in shown.facts.items()
        }
        document = {"schema_version": SCHEMA_VERSION, "name": shown.software.name}
        when = [
            {"conditions": it.conditions, "values": it.values, "source": it.source}
            for it in shown.when
        ]
        print_json(document | {"title": shown.title, "values": values, "when": when})
        return
    click.echo(heading(f"{shown.software.name}: {shown.title}"))
    for title, told in (("", False), (shown.told_title, True)):
        rows = [
            [
                key if told else f"software.{key}",
                _value(getattr(shown.software, key)),
                fact.unit,
                fact.description,
                shown.source.get(key, ""),
            ]
            for key, fact in shown.facts.items()
            if (key in shown.told) == told
        ]
        click.echo()
        headers = [title or "path", "value", "unit", "meaning", "source"]
        click.echo(table(headers, rows, left=(0, 2, 3, 4)))
    if shown.when:
        rows = [[_pairs(it.conditions), _pairs(it.values), it.source] for it in shown.when]
        click.echo()
        click.echo(table(["runs with", "do", "source"], rows, left=(0, 1, 2)))


class Shown(NamedTuple):
    """Software and what is known of it: `told` are facts that cannot be set, with their title."""

    software: Framework | Engine
    title: str
    facts: Mapping[str, Field]
    source: Mapping[str, str]
    told: tuple[str, ...]
    told_title: str
    when: tuple[When, ...] = ()


def _found(name: str, settings: Mapping[str, Any]) -> Shown:
    """Return a framework, or an engine, by name."""
    from perfmodel.base.errors import StrategyError, did_you_mean
    from perfmodel.base.fields import facts_of
    from perfmodel.software import engine, framework

    engines = {item.engine for item in engine.ENGINES.values()}
    if name.partition("-")[0] in engines:
        found = load_one_engine(name, settings)
        preset = found.name.partition("[")[0]
        facts, source = facts_of(engine.Engine), engine.SOURCES[preset]
        return Shown(found, engine.TITLES[preset], facts, source, engine.IDENTITY, "which it is")
    known = [*framework.framework_names(), *framework.FRAMEWORKS]
    if "@" not in name and name not in known:
        hint = did_you_mean(name, [*known, *engine.ENGINES])
        raise StrategyError(f"unknown framework or engine '{name}'{hint}")
    software = load_software(name, settings)
    preset = software.name.partition("[")[0]
    facts, source = facts_of(framework.Framework), framework.SOURCES[preset]
    told = (*framework.IDENTITY, *framework.OF_MEASURED_RUNS)
    title, when = framework.TITLES[preset], framework.WHEN[preset]
    return Shown(software, title, facts, source, told, "of published runs", when)


def _pairs(values: Mapping[str, Any]) -> str:
    """Write keys and values in a line."""

    def text(value: Any) -> str:
        return ", ".join(value) if isinstance(value, list) else _value(value)

    return "; ".join(f"{key} {text(value)}" for key, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
