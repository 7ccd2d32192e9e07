"""Imports run one way: each floor sees only those below it, kernels see nothing of ours."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import perfmodel
from tests.data import PYPROJECT

PACKAGE = Path(perfmodel.__file__).parent
# Bottom up, as in the design; a module name stands for the floor of its file or folder.
KERNEL_IMPORTS = {"numpy", "numba"}


def modules() -> dict[str, Path]:
    """Every module of the installed package by dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(("perfmodel", *parts)).removesuffix(".__init__")
        found[name] = path
    # Folders behind symlinks, which rglob does not follow.
    for folder in ("kernels", "hwprofiles", "cli"):
        for path in sorted((PACKAGE / folder).resolve().rglob("*.py")):
            parts = path.relative_to((PACKAGE / folder).resolve()).with_suffix("").parts
            found[".".join(("perfmodel", folder, *parts)).removesuffix(".__init__")] = path
    return found


MODULES = modules()


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(tree: ast.Module, *, types: bool = True) -> Iterator[ast.AST]:
    """Yield all statements, inside functions too; without `types`, not a type checker's own."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        parts = ["body", "orelse", "finalbody", "handlers", "cases"]
        if not types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            parts = ["orelse"]
        for part in parts:
            waiting += getattr(node, part, ())


@functools.cache
def imports(path: Path, name: str, *, top_level_only: bool = False) -> set[str]:
    """Dotted names that a module imports; inside functions too, unless told otherwise."""
    tree = parsed(path)
    nodes = tree.body if top_level_only else statements(tree)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name if path.stem == "__init__" else name.rpartition(".")[0]
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, base]).rstrip(".")
            found.add(base)
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def our_imports(path: Path, name: str) -> set[str]:
    """Floor names (first part below `perfmodel`) that a module imports."""
    return {item.split(".")[1] for item in imports(path, name) if item.startswith("perfmodel.")}


def floors() -> list[list[str]]:
    """Floors of ``[tool.importlinter]``, top down."""
    if not PYPROJECT.exists():
        pytest.skip("an installed package has no pyproject.toml with the floors")
    table = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    (contract,) = [
        item for item in table["tool"]["importlinter"]["contracts"] if item["name"] == "Floors"
    ]
    return [[name.strip() for name in re.split(r"[:|]", layer)] for layer in contract["layers"]]


def imported_modules(path: Path) -> set[str]:
    """Our modules that run when all functions of a module do, packages only for their own names."""
    found = set()
    for node in statements(parsed(path), types=False):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in MODULES else str(node.module) for name in names}
    return found & set(MODULES)


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return modules that import each other round, in order; none where there is no such circle."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_imports_run_in_a_circle():
    """Imports inside functions count too: they put a circle off, they do not break it."""
    graph = {name: imported_modules(path) - {name} for name, path in MODULES.items()}
    assert circle(graph) == []
    graph["perfmodel.base.errors"].add("perfmodel.cli.main")
    assert len(circle(graph)) > 2  # the check can fail


def test_modules_were_found():
    assert {
        "perfmodel.kernels.step.close",
        "perfmodel.sweeps.sweep",
        "perfmodel.hwprofiles",
    } <= set(MODULES)
    assert "perfmodel.cli.main" in MODULES


def test_kernels_import_only_numpy_numba_and_each_other():
    for name in MODULES:
        if not name.startswith("perfmodel.kernels"):
            continue
        for item in imports(MODULES[name], name):
            root = item.split(".")[0]
            if root == "perfmodel":
                assert item.startswith("perfmodel.kernels"), f"{name} imports {item}"
            else:
                known = root in KERNEL_IMPORTS or root in sys.stdlib_module_names
                assert known, f"{name} imports {item}"


def test_every_module_has_a_floor():
    listed = {name for floor in floors() for name in floor}
    exempt = {"__main__"}
    first = {name.split(".")[1] for name in MODULES if "." in name}
    assert first - exempt == listed


def test_floors_import_from_below_only():
    height = {item: -i for i, floor in enumerate(floors()) for item in floor}
    for name in MODULES:
        own = name.partition(".")[2].partition(".")[0]
        if own not in height:
            continue
        for other in our_imports(MODULES[name], name) & set(height):
            assert height[other] <= height[own], f"{name} imports {other}"


def test_the_floors_are_those_of_the_design():
    """Order of the words that the design fixes, bottom up."""
    height = {item: -i for i, floor in enumerate(floors()) for item in floor}
    order = ["kernels", "model", "compute", "operations", "training", "sweeps", "workloads"]
    order += ["report", "cli"]
    assert [height[item] for item in order] == sorted(height[item] for item in order)
    # What is above must not share a floor with what it rests on.
    assert len({height[item] for item in order}) == len(order)


# Rooms that compute and modules of xarray's, themselves imported late.
COMPUTING = (
    *("perfmodel.kernels", "perfmodel.compute.", "perfmodel.measured.kinds."),
    "perfmodel.sweeps.collective_grids",
    "perfmodel.store.datasets",
    "perfmodel.base.lazy_columns",
)
SLOW = ("numba", "xarray", "netCDF4", "matplotlib", "scipy")


def loaded_with(name: str, seen: set[str]) -> set[str]:
    """Everything that importing a module imports at once, packages of ours followed."""
    for item in imports(MODULES[name], name, top_level_only=True) - seen:
        seen.add(item)
        if item in MODULES:
            loaded_with(item, seen)
    return seen


def test_jitted_modules_are_imported_late():
    """Importing numba costs half a second; only functions that compute pay for it."""
    for name in MODULES:
        if not name.startswith(COMPUTING):
            for item in loaded_with(name, set()):
                assert item.split(".")[0] not in SLOW, f"{name} imports {item}"


def test_importing_the_package_is_light():
    code = (
        "import sys, perfmodel; "
        "perfmodel.load_model; perfmodel.strategy_grid; perfmodel.load_hardware; "
        "print(sorted({'numba', 'xarray', 'netCDF4', 'scipy', 'rich'} & set(sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
