"""The registry of kernels: defaults, limits, and the commands that are made of it."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from perfmodel.base.errors import DataError
from perfmodel.cli.core.kernel import kernel_group
from perfmodel.hwprofiles import Hardware
from perfmodel.sweeps.grids import KERNELS, kernel_grid
from perfmodel.sweeps.kernel_kinds.kind import Kernel


def test_unknown_settings_are_refused(h100: Hardware) -> None:
    with pytest.raises(DataError, match="a grid of gemm has no setting 'stedy'; did you mean st"):
        kernel_grid("gemm", [h100], {"m": [1], "n": [1], "k": [1]}, stedy=True)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_every_axis_and_setting_is_an_option_with_its_default(kernel: Kernel) -> None:
    shown = {param.name: param for param in kernel_group.commands[kernel.name].params}
    for axis in kernel.axes:
        param = shown[axis.name]
        if axis.kind == "argument":
            assert isinstance(param, click.Argument)
            continue
        assert param.opts[0] == f"--{axis.option}"
        assert param.required == (axis.default is None)
        if not param.required:
            assert param.default == (str(axis.default),)
            assert param.type_cast_value(click.Context(click.Command("x")), param.default) == (
                axis.default,
            )
    context = click.Context(kernel_group.commands[kernel.name])
    for setting in kernel.settings:
        if setting.default is not None:
            assert shown[setting.name].get_default(context) == setting.default
    order = [axis.name for axis in kernel.axes] + [setting.name for setting in kernel.settings]
    assert [param.name for param in shown.values()][: len(order)] == order


def test_the_registry_costs_no_numba() -> None:
    code = (
        "import sys, perfmodel.sweeps.grids; "
        "print(sorted({'numpy', 'numba', 'xarray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
