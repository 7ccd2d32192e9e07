"""Instructions in a netCDF file come back as they were."""

from pathlib import Path

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.wafer.formats import core_columns
from perfmodel.wafer.formats.core_columns import CoreColumns, read_cores
from tests.wafer.cores.examples import LATENT, operations


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(core_columns, "KEPT_LINES", 5000)
    file = CoreColumns(tmp_path / "cores.nc", LATENT, {"model": "x"})
    for step in (0, 3):
        for node in (0, 5):
            for one in operations("absorbed")[node]:
                file.add(node, step, one.name, one.macs, one.instructions)
    file.close()
    return tmp_path


def test_instructions_come_back(written: Path) -> None:
    system, found = read_cores(written)
    assert system == LATENT
    wanted = [
        (node, step, one.name, one.instructions)
        for step in (0, 3)
        for node in (0, 5)
        for one in operations("absorbed")[node]
    ]
    for (node, step, name, made), (to, at, word, other) in zip(wanted, found, strict=True):
        assert (node, step, name) == (to, at, word)
        assert (made.lines == other.lines).all()
        cast = made.lines[:, 0] == 5
        assert (made.arguments[~cast] == other.arguments[~cast]).all()
        for mine, theirs in zip(made.arguments[cast], other.arguments[cast], strict=True):
            assert (mine[:2] == theirs[:2]).all()
            assert (
                made.destinations[mine[2] : mine[2] + mine[3]].tolist()
                == other.destinations[theirs[2] : theirs[2] + theirs[3]].tolist()
            )


def test_one_operation_of_one_step(written: Path) -> None:
    _, found = read_cores(written / "cores.nc", 3, "wkva")
    assert [(node, step, name) for node, step, name, _ in found] == [
        (0, 3, "decode3_attn_absorb_wkva"),
        (5, 3, "decode3_attn_absorb_wkva"),
    ]


def test_who_stops_reading_leaves_no_file_open(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import netCDF4

    opened = []
    library = netCDF4.Dataset
    monkeypatch.setattr(netCDF4, "Dataset", lambda path: opened.append(library(path)) or opened[-1])
    _, found = read_cores(written)
    next(found)
    assert opened
    assert not any(file.isopen() for file in opened)


def test_what_is_not_there_is_named(written: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no step 1; it has 0, 3"):
        read_cores(written, 1)
    with pytest.raises(DataError, match="no operation 'wkvx'"):
        read_cores(written, 0, "wkvx")
    with pytest.raises(DataError, match="not a readable"):
        read_cores(tmp_path / "missing.nc")
    (tmp_path / "text.nc").write_text("no")
    with pytest.raises(DataError, match="not a readable"):
        read_cores(tmp_path / "text.nc")
    import netCDF4

    netCDF4.Dataset(tmp_path / "other.nc", "w").close()
    with pytest.raises(DataError, match="'perfmodel workload cores' writes them"):
        read_cores(tmp_path / "other.nc")
    assert np.isfinite(len(list(read_cores(written, 0)[1])))
