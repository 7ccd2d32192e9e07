"""What the package list ships is what the tree holds."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.data import ROOT

in_repository = pytest.mark.skipif(
    not (ROOT / "perfmodel").is_dir(), reason="the tests run outside the repository"
)


def setuptools_table() -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    table: dict[str, Any] = project["tool"]["setuptools"]
    return table


@in_repository
def test_the_package_list_names_every_folder_with_an_init_file() -> None:
    folders = {
        path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for top in ("perfmodel", "kernels", "hwprofiles", "cli")
        for path in (ROOT / top).rglob("__init__.py")
    }
    # Seen through the symlinks or beside them, each package counts once.
    names = {name if name.split(".")[0] == "perfmodel" else f"perfmodel.{name}" for name in folders}
    assert set(setuptools_table()["packages"]) == names


@in_repository
def test_package_dir_points_at_the_folders_that_the_symlinks_point_at() -> None:
    for name, folder in setuptools_table()["package-dir"].items():
        path = ROOT / name.replace(".", "/")
        assert path.resolve() == ROOT / folder
        if "." in name:
            assert path.is_symlink()
            assert not Path(path.readlink()).is_absolute()


@in_repository
def test_package_data_covers_every_file_that_is_no_code() -> None:
    table = setuptools_table()
    folders = {
        name: ROOT / table["package-dir"].get(name, name.replace(".", "/"))
        for name in table["packages"]
    }
    for name, folder in folders.items():
        covered = {
            path for pattern in table["package-data"].get(name, ()) for path in folder.glob(pattern)
        }
        others = {
            path
            for path in folder.rglob("*")
            if path.is_file()
            and path.suffix != ".py"
            and "__pycache__" not in path.parts
            and not any(
                path.is_relative_to(other)
                for other in folders.values()
                if other != folder and other.is_relative_to(folder)
            )
        }
        assert others <= covered, name


def test_presets_and_profiles_are_there_after_installation() -> None:
    presets = resources.files("perfmodel.model") / "presets"
    profiles = resources.files("perfmodel.hwprofiles")
    assert any(item.name == "llama.json" for item in presets.iterdir())
    assert any(item.name == "dgx-h100.toml" for item in profiles.iterdir())
    assert (resources.files("perfmodel") / "py.typed").is_file()


@pytest.mark.parametrize("module", ["perfmodel", "perfmodel.cli.main", "perfmodel.hwprofiles"])
def test_importing_stays_light(module: str) -> None:
    heavy = ("numpy", "numba", "xarray", "scipy", "rich", "netCDF4")
    code = (
        f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules], end='')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]"
