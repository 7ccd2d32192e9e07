"""Versions are those of the installation, and asking for them imports nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata

import pytest

from perfmodel.base.provenance import versions

PACKAGES = ("numpy", "numba", "xarray", "netCDF4", "scipy")


def test_versions_are_those_of_the_installation():
    expected = {name: metadata.version(name) for name in PACKAGES}
    code = (
        "import json, sys; from perfmodel.base.provenance import versions\n"
        f"found = versions(*{PACKAGES})\n"
        f"assert not sys.modules.keys() & set({PACKAGES})\n"
        "print(json.dumps(found))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert expected.items() <= json.loads(run.stdout).items()


def test_a_missing_package_is_an_error():
    with pytest.raises(metadata.PackageNotFoundError):
        versions("no_such_package")
