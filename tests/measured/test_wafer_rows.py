"""Rows of tables of wafers: what was run, on which mesh, how long."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import DataError
from perfmodel.measured.kinds.wafer import KIND
from perfmodel.measured.rows import MeasuredRow, Skip
from perfmodel.measured.wafer_rows import (
    ALL_HEADS,
    case_of,
    derived,
    hardware_of,
    measured_value,
)
from tests.data import table_of

PROMPT = {
    "kind": "prefill",
    "system": "Cerebras WSE-2 (850,000 cores, 48 kB/core, 40 GB)",
    "units": "1",
    "core_grid": "480x480",
    "clock_GHz": "1.1",
    "model": "LLaMA3-8B",
    "batch": "1",
    "isl": "4096.0",
    "metric": "prefill tokens/s of one request",
    "value": "20320.6",
    "unit": "tok/s",
}
TOKEN = {**PROMPT, "kind": "decode", "core_grid": "420x420", "value": "2699.9"}
REQUEST = {
    **PROMPT,
    "kind": "end to end",
    "core_grid": "660x660 prefill, 360x360 decode",
    "osl": "128",
    "value": "604.4",
}
VECTOR = {
    "kind": "GEMV",
    "system": "Cerebras WSE-2",
    "core_grid": "not stated",
    "model": "[1,16384]x[16384,8192]",
    "value": "0.0012",
    "unit": "ms",
}
LONGEST = {
    **PROMPT,
    "kind": "capacity",
    "metric": "maximum decode length, KV shifted over rows",
    "value": "137548",
    "unit": "tokens",
    "isl": "",
}
CHIPS = {
    "kind": "decode",
    "system": "Tenstorrent QuietBox (8 Wormhole)",
    "units": "8",
    "core_grid": "8x8 Tensix per Wormhole",
    "model": "Qwen3-32B",
    "batch": "32",
    "isl": "128",
    "value": "22.1",
    "unit": "tok/s/user",
}


def row(*cells: dict[str, str], **changed: str) -> MeasuredRow:
    return MeasuredRow({**cells[0], **changed}, "runs.csv", 7)


def test_a_rate_is_the_time_of_what_it_counts() -> None:
    assert measured_value(row(PROMPT)) == pytest.approx(4096 / 20320.6)
    assert measured_value(row(TOKEN)) == pytest.approx(1 / 2699.9)
    assert measured_value(row(REQUEST)) == pytest.approx(128 / 604.4)
    assert measured_value(row(VECTOR)) == pytest.approx(1.2e-6)
    assert measured_value(row(LONGEST)) == 137548


def test_cells_become_a_case() -> None:
    case = case_of(row(REQUEST))
    assert case.model is not None
    assert case.model.name == "llama-3-8b"
    assert case.grids == {"prefill": (660, 660), "decode": (360, 360)}
    assert (case.phase, case.input_length, case.output_length) == ("end to end", 4096, 128)
    assert case_of(row(TOKEN)).grids == {"prefill": (420, 420), "decode": (420, 420)}
    assert case_of(row(VECTOR)).product == (16384, 8192)
    assert case_of(row(LONGEST)).layout == "shifted"
    assert case_of(row(CHIPS)).grids == {}
    assert not case_of(row(TOKEN)).blind
    assert case_of(row(TOKEN, kind="decode, mapping of T10")).blind
    assert case_of(row(TOKEN, clock_GHz="0.85")).hardware.clock == 0.85e9


def test_measured_kernels_hold_keys_and_values_of_all_heads() -> None:
    source = "He et al., WaferLLM, OSDI 2025"
    for cells in (PROMPT, TOKEN, REQUEST):
        case = case_of(row(cells, source=source))
        assert case.model is not None
        attention = case.model.layers[0].attention
        assert attention.key_value_heads == attention.heads == 32
        assert case.notes == (ALL_HEADS,)
    for other in (row(PROMPT), row(LONGEST, source=source)):
        case = case_of(other)
        assert case.model is not None
        assert case.model.layers[0].attention.key_value_heads == 8
    assert case_of(row(PROMPT, source=source, model="LLaMA2-13B")).notes == ()


@pytest.mark.parametrize(
    ("system", "units", "name"),
    [
        ("Cerebras WSE-2 (850,000 cores, 48 kB/core, 40 GB)", "1", "wse-2"),
        ("Cerebras WSE-3 (CS-3, 44 GB, 21 PB/s)", "4 (vendor, recalled)", "wse-3"),
        ("Tenstorrent QuietBox (8 Wormhole)", "8", "quietbox"),
        ("Tenstorrent QuietBox (4 Blackhole)", "4", "quietbox-blackhole"),
        ("Tenstorrent Galaxy (32 Wormhole)", "32", "galaxy"),
        ("Tenstorrent n150 (1 Wormhole)", "1", "n150"),
        ("Tenstorrent n300 (2 Wormhole)", "2", "n300"),
        ("Tenstorrent p100 (1 Blackhole)", "1", "p100"),
        ("Tenstorrent p150 (1 Blackhole)", "1", "p150"),
    ],
)
def test_systems_are_found_by_what_their_text_says(system: str, units: str, name: str) -> None:
    found = hardware_of(row(PROMPT, system=system, units=units))
    assert found.name == name
    assert derived(row(PROMPT, system=system, units=units))["device"] == name


def test_a_profile_that_is_named_counts() -> None:
    assert hardware_of(row(PROMPT, hardware="wse-3")).name == "wse-3"
    with pytest.raises(Skip, match="no hardware profile"):
        hardware_of(row(PROMPT, hardware="wse-9"))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"kind": "training"}, "kind of run not known"),
        ({"kind": "decode, public service"}, "context only"),
        ({"batch": "not stated"}, "context only"),
        ({"kind": "reduce"}, "a claim about a formula"),
        ({"system": "Groq LPU"}, "no hardware profile"),
        ({"model": "a model of ours"}, "architecture not stated"),
        ({"isl": ""}, "length of the prompt not stated"),
        ({"kind": "end to end"}, "length of the answer not stated"),
        ({"kind": "capacity"}, "layout of keys and values not stated"),
    ],
)
def test_rows_that_cannot_be_projected_say_why(changed: dict[str, str], reason: str) -> None:
    with pytest.raises(Skip, match=reason):
        case_of(row(PROMPT, **changed))


@pytest.mark.parametrize("changed", [{"value": ""}, {"unit": ""}])
def test_rows_without_a_measurement_cannot_judge(changed: dict[str, str]) -> None:
    with pytest.raises(Skip) as found:
        measured_value(row(PROMPT, **changed))
    assert not found.value.scorable


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        *table_of(__file__, "broken_cells_name_file_line_and_column"),
        ({"value": "nan"}, None),
        ({"core_grid": "9" * 5000 + "x480"}, "should be rows x columns of cores"),
    ],
)
def test_broken_cells_name_file_line_and_column(changed: dict[str, str], words: str | None) -> None:
    def read() -> None:
        KIND.refuse_broken(broken)
        case_of(broken)
        measured_value(broken)

    broken = row(PROMPT, **changed)
    if words is None:
        KIND.refuse_broken(broken)
        return
    with pytest.raises(DataError, match=words) as found:
        read()
    assert str(found.value).startswith("runs.csv, line 7, column ")
