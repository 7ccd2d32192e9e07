"""Communicator groups of a trace: round trip, and what a list of ranks must not be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError
from perfmodel.workloads.formats.chakra.groups import check_groups, read_groups, write_groups

GROUPS = st.dictionaries(
    st.text(max_size=4),
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4, unique=True).map(tuple),
    max_size=4,
)


@given(groups=GROUPS)
@settings(max_examples=30)
def test_write_and_read(tmp_path_factory, groups):
    path = tmp_path_factory.mktemp("groups") / "g.json"
    write_groups(groups, path)
    again = read_groups(path)
    assert again == groups
    assert list(again) == list(groups)


def test_the_file_is_what_astra_sim_reads(tmp_path):
    write_groups({"1": (0, 1), "a0": (5, 4)}, tmp_path / "g.json")
    assert (tmp_path / "g.json").read_text() == '{"1": [0, 1], "a0": [5, 4]}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ('{"1": [0, 1]', r"g\.json:1: not JSON"),
        ('{\n"1": [0,]}', r"g\.json:2: not JSON"),
        ("[[0, 1]]", "expected an object"),
        ('{"1": []}', "group '1': expected a list of ranks"),
        ('{"1": 3}', "group '1': expected a list"),
        ('{"1": {"0": 1}}', "group '1': expected a list"),
        ('{"1": [0, -1]}', "rank -1 should be"),
        ('{"1": [0, 1.0]}', r"rank 1\.0 should be"),
        ('{"1": [0, true]}', "rank True should be"),
        ('{"1": [0, NaN]}', "rank nan should be"),
        ('{"1": [0, 4]}', "rank 4, but the ranks are 0 to 3"),
        ('{"1": [0, 2147483648]}', "rank 2147483648 should be"),
        ('{"1": [0, 2, 0]}', "group '1': rank 0 twice"),
        ('{"1": [0], "1": [1]}', "'1' twice"),
        ('{"1": [' + "9" * 5000 + "]}", "g.json"),
        ("[" * 100_000, "g.json"),
        ('{"a\\nb": []}', r"group 'a\?b'"),
    ],
)
def test_bad_files(tmp_path, text, message):
    path = tmp_path / "g.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=message) as error:
        read_groups(path, devices=4)
    assert "\n" not in str(error.value)


def test_bytes_that_are_no_text_and_missing_files(tmp_path):
    (tmp_path / "g.json").write_bytes(b'{"\xff": [0]}')
    with pytest.raises(FormatError, match="not UTF-8 text; a JSON object of groups"):
        read_groups(tmp_path / "g.json")
    with pytest.raises(FormatError, match="cannot read"):
        read_groups(tmp_path / "h.json")


def test_ranks_are_checked_against_the_devices_only_where_told():
    assert check_groups({"1": [7]}) == {"1": (7,)}
    with pytest.raises(FormatError, match="rank 7, but the ranks are 0 to 6"):
        check_groups({"1": [7]}, devices=7)


def test_bad_groups_are_not_written(tmp_path):
    with pytest.raises(FormatError, match="twice"):
        write_groups({"1": (3, 3)}, tmp_path / "g.json")
    assert not list(tmp_path.iterdir())


def test_groups_of_the_sanity_check(development_table):
    groups = read_groups(development_table("astra/et_sanity/comm_group.json"), devices=16)
    assert len(groups) == 24
    assert groups["7"] == (10, 11)
