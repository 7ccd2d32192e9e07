"""Stores of blocks hold what was written, and say which blocks they hold."""

from __future__ import annotations

import json

import xarray as xr

from perfmodel.sweeps.block_store import PartsStore, ZarrStore
from tests.sweeps.block_sweeps import small_whole


def test_choices_that_are_one_text_are_written_as_others_are(tmp_path):
    like = small_whole()
    for store in (ZarrStore(tmp_path), PartsStore(tmp_path)):
        store.create(like, 140, 70)
        for number in (0, 1):
            assert store.holds(number) == isinstance(store, ZarrStore)
            store.write(number, 70 * number, like.isel(strategy=slice(0, 70)))
            assert store.holds(number)
    found = xr.open_zarr(tmp_path / "results.zarr", consolidated=False).load()
    for name in ("mapping", "status", "recompute", "pipeline_schedule"):
        assert found[name][:70].values.tolist() == found[name][70:].values.tolist()
        assert found[name][70:].values.tolist() == like[name].labelled()[:70].tolist()
    document = json.loads((tmp_path / "results.zarr" / "zarr.json").read_text())
    assert "unfinished" in document["attributes"]
