"""What the package list ships is what the tree holds."""

from __future__ import annotations

import importlib.util
import io
import re
import subprocess
import sys
import tarfile
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.data import ROOT, in_repository


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
    assert set(setuptools_table()["packages"]) == names | {"perfmodel.samples"}  # data alone


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
        name: (ROOT / table["package-dir"].get(name, name.replace(".", "/"))).resolve()
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
    samples = resources.files("perfmodel.samples")
    assert (samples / "launch" / "nemo.yaml").is_file()


def archive(path: Path, names: list[str], when: int) -> None:
    """Write a source distribution as somebody's machine makes it."""
    with tarfile.open(path, "w:gz") as packed:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uid, member.uname = len(name), when, when, str(when)
            member.mode = 0o755 if name.endswith(".sh") else 0o600 + when % 8
            packed.addfile(member, io.BytesIO(name.encode()))


@in_repository
def test_source_distributions_depend_on_files_alone(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", reason="setuptools is not installed")
    spec = importlib.util.spec_from_file_location("backend", ROOT / ".ci/backend.py")
    assert spec is not None
    assert spec.loader is not None
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    for number, names in enumerate((["p/a.py", "p/run.sh"], ["p/run.sh", "p/a.py"])):
        path = tmp_path / f"{number}.tar.gz"
        archive(path, names, 1_000_000 + number)
        backend.settle(path, 1_700_000_000)
    first, second = ((tmp_path / f"{number}.tar.gz").read_bytes() for number in (0, 1))
    assert first == second
    with tarfile.open(tmp_path / "0.tar.gz") as packed:
        assert [(it.name, it.mode, it.mtime) for it in packed.getmembers()] == [
            ("p/a.py", 0o644, 1_700_000_000),
            ("p/run.sh", 0o755, 1_700_000_000),
        ]
        assert packed.extractfile("p/a.py").read() == b"p/a.py"  # type: ignore[union-attr]


@in_repository
def test_the_lowest_versions_are_those_that_extras_and_requirements_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    installed = ("plot", "parquet", "zarr", "dask", "ui", "test")
    lines = [*project["dependencies"], *(line for name in installed for line in extras[name])]
    lowest = dict(re.findall(r"^([\w-]+)>=([\d.]+)", "\n".join(lines), re.MULTILINE))
    text = (ROOT / ".ci/lowest.txt").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+)", text, re.MULTILINE))
    for name, version in lowest.items():
        assert pinned[name].startswith(version), name


@pytest.mark.parametrize("module", ["perfmodel", "perfmodel.cli.main", "perfmodel.hwprofiles"])
def test_importing_stays_light(module: str) -> None:
    heavy = ("numpy", "numba", "xarray", "scipy", "rich", "netCDF4")
    code = (
        f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules], end='')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]"
