"""The size and the structure of the source, counted: lines, files, arrows, circles, options.

    python benchmarks/house.py [--json] [--root FOLDER]

Source is every ``.py`` file of perfmodel, kernels, cli and hwprofiles. A wing is one of
workloads, wafer, measured and report, with its kernels and commands; all else is the core. A room
is a folder below ``perfmodel``; kernels, cli and hwprofiles are one each. An arrow is a pair of
rooms of which one imports the other, late and for types too; it runs upwards where the contract
"Floors" of pyproject.toml has the imported room above. A circle is files that import each other
round. An option is declared by hand where a decorator or a call of click's option stands outside
``cli/shared/options.py``, which makes options of tables of fields. ``tests/project/test_house.py``
keeps the budgets.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import statistics
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TOPS = ("perfmodel", "kernels", "cli", "hwprofiles")
WINGS = ("workloads", "wafer", "measured", "report")
INSTALLED = ("kernels", "cli", "hwprofiles")
"""Folders at top level that are installed below ``perfmodel``, where links stand for them."""
GENERATOR = "cli/shared/options.py"


def python_files(root: Path, *tops: str) -> Iterator[Path]:
    """Yield the Python files of folders, those behind links left out."""
    for top in tops:
        for path in sorted((root / top).rglob("*.py")):
            if not any(root / "perfmodel" / name in path.parents for name in INSTALLED):
                yield path


def module_name(path: Path) -> str:
    """Return the dotted name of a file, relative to the root."""
    parts = path.with_suffix("").parts
    name = ".".join(parts if parts[0] == "perfmodel" else ("perfmodel", *parts))
    return name.removesuffix(".__init__")


def wing_of(path: Path) -> str:
    """Return which wing a file, relative to the root, belongs to."""
    return path.parts[1] if len(path.parts) > 2 and path.parts[1] in WINGS else "core"


def room_of(module: str) -> str:
    """Return the room of a module."""
    return module.split(".")[1] if "." in module else "perfmodel"


def imported(tree: ast.Module, known: set[str]) -> set[str]:
    """Return the modules of ours that a module imports, late and for types too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in full}
    return found & known


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of files that import each other round (Tarjan's components)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in graph[name]:
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in order:
            visit(name)
    return found


def heights(root: Path) -> dict[str, int]:
    """Return how high each room stands by the contract "Floors", the lowest at 0."""
    file = root / "pyproject.toml"
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    contracts = table["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["name"] == "Floors")
    return {
        room.strip(): height
        for height, layer in enumerate(reversed(layers))
        for room in re.split("[:|]", layer)
    }


def options(tree: ast.Module) -> int:
    """Count the calls that make an option: ``click.option(…)``, ``option(…)``, ``Option(…)``."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    names = (getattr(call, "attr", getattr(call, "id", "")) for call in calls)
    return sum(name in ("option", "Option") for name in names)


def functions(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of every function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def count(root: Path) -> dict[str, object]:
    """Count a checkout; keys are those of the printed document."""
    files = list(python_files(root, *TOPS))
    texts = {path.relative_to(root): path.read_text(encoding="utf-8") for path in files}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    names = {module_name(path): path for path in texts}
    graph = {name: imported(trees[path], set(names)) - {name} for name, path in names.items()}
    arrows = {(room_of(name), room_of(other)) for name, others in graph.items() for other in others}
    arrows = {(a, b) for a, b in arrows if a != b}
    floors = heights(root)
    lines, number = Counter[str](), Counter[str]()
    for path, text in texts.items():
        lines[wing_of(path)] += text.count("\n")
        number[wing_of(path)] += 1
    lengths = sorted(length for tree in trees.values() for length in functions(tree))
    tests = [path.read_text(encoding="utf-8") for path in python_files(root, "tests")]
    return {
        "lines": dict(sorted(lines.items())) | {"all": sum(lines.values())},
        "files": dict(sorted(number.items())) | {"all": sum(number.values())},
        "arrows": len(arrows),
        "upward_arrows": sorted(
            f"{a} -> {b}" for a, b in arrows if floors.get(a, 99) < floors.get(b, -1)
        ),
        "circles": circles(graph),
        "options_by_hand": sum(
            options(tree)
            for path, tree in trees.items()
            if path.parts[0] == "cli" and path.as_posix() != GENERATOR
        ),
        "test_lines": sum(text.count("\n") for text in tests),
        "function_length": {
            "median": statistics.median(lengths),
            "percentile_95": lengths[int(0.95 * len(lengths))],
        },
    }


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    options = parser.parse_args()
    found = count(options.root.resolve())
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        print(f"{name.replace('_', ' ')}: {value if value else 'none'}")


if __name__ == "__main__":
    main()
