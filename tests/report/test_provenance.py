"""What results say of themselves, whole or damaged."""

import hashlib

from perfmodel.base.table import Table, from_xarray
from perfmodel.report.provenance import file_facts, table_provenance


def test_files_are_known_by_their_digest(tmp_path):
    path = tmp_path / "some.nc"
    path.write_bytes(b"abc" * 1000)
    facts = dict(file_facts(path))
    assert facts["size"] == "3,000 B"
    assert facts["SHA-256"] == hashlib.sha256(b"abc" * 1000).hexdigest()


def test_hardware_states_its_numbers(swept):
    found = table_provenance("s", from_xarray(swept), [])
    h100 = found["hardware"][0]
    facts = dict(h100["facts"])
    assert facts["peak bf16"] == "989.4 TFLOP/s"
    assert facts["memory"] == "79.1 GiB"
    assert "450 GB/s" in facts["network nvlink"]
    assert all(len(source) <= 161 for *_, source in h100["constants"])


def test_results_without_provenance_have_little_to_say():
    for text in ("", "{", "[1]", '{"hardware": 3, "model": [], "versions": null}'):
        found = table_provenance("s", Table({}, {}, {"title": "t", "provenance": text}), [])
        assert found["facts"] == [["title", "t"]]
        assert found["hardware"] == []


def test_damaged_profiles_are_shown_as_far_as_they_go():
    text = '{"hardware": {"x": {"title": "X", "device": {"peak_flops": {"bf16": 1e15}}}}}'
    (hardware,) = table_provenance("s", Table({}, {}, {"provenance": text}), [])["hardware"]
    assert ["peak bf16", "1 PFLOP/s"] in hardware["facts"]
    assert hardware["trust"] == []
