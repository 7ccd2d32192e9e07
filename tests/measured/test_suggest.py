"""What would be worth measuring: uncertain constants, and kernels that share them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json

import pytest

from perfmodel.hwprofiles import Hardware, load_hardware
from perfmodel.measured.suggest import candidates, suggest
from tests.cli.running import run


def uncertain(hardware: Hardware, *unknown: tuple[str, str]) -> Hardware:
    """Return a device of which some constants are priors and all others are known."""
    known = {
        group: {
            key: dataclasses.replace(
                entry, trust="prior" if (group, key) in unknown else "calibrated"
            )
            for key, entry in entries.items()
        }
        for group, entries in hardware.calibration.items()
    }
    return dataclasses.replace(hardware, calibration=known)


def test_a_known_device_needs_nothing() -> None:
    assert suggest(uncertain(load_hardware("dgx-h100"))) == []


def test_what_an_uncertain_constant_moves_most_is_measured_first() -> None:
    launch = uncertain(load_hardware("dgx-h100"), ("gemm", "launch_latency"))
    (first, *_) = suggest(launch, 2)
    assert first.candidate.what == "product 64 x 1024 x 1024"  # the shortest
    assert first.spread_after < 0.5 * first.spread_before
    stream = uncertain(load_hardware("dgx-h100"), ("stream", "memory_efficiency"))
    assert suggest(stream, 1)[0].candidate.kernel == "stream"


def test_every_measurement_takes_uncertainty_away_and_none_comes_twice() -> None:
    unknown = [("gemm", "launch_latency"), ("moe", "main_loop_efficiency"), ("moe", "sort_time")]
    found = suggest(uncertain(load_hardware("dgx-h100"), *unknown))
    assert len({item.candidate.what for item in found}) == len(found)
    for item in found:
        assert item.spread_after < item.spread_before
    for one, other in itertools.pairwise(found):
        assert one.spread_after == other.spread_before
    assert len(list(candidates())) >= 15


def test_the_command_names_five_and_needs_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    found = functools.cache(lambda name: suggest(load_hardware(name)))  # once, printed twice
    monkeypatch.setattr("perfmodel.measured.suggest.suggest", lambda given: found(given.name))
    result = run("calibrate", "trn2-48xl", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["profile"] == "trn2-48xl"
    assert len(document["measurements"]) == 5
    assert {"kernel", "what", "axes", "spread_before", "spread_after"} == {
        *document["measurements"][0]
    }
    shown = run("calibrate", "trn2-48xl")
    assert "constants prior: gemm" in shown.stdout
    assert "spread before" in shown.stdout
