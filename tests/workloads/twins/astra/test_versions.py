"""Which state of ASTRA-sim is repeated."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.workloads.twins.astra.versions import DEFAULT_VERSION, VERSIONS, astra_version


def test_without_a_version_it_is_what_is_cloned_today():
    assert astra_version("astra-sim") is DEFAULT_VERSION is VERSIONS["main"]


@pytest.mark.parametrize("version", VERSIONS.values(), ids=str)
def test_a_version_goes_by_its_name_and_by_its_commit(version):
    assert astra_version(str(version)) is version
    assert astra_version(f"astra-sim@{version.commit}") is version
    assert astra_version(version) is version


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("astra-sim@mian", "no version 'mian'.*af2492b or astra-sim@main; did you mean main"),
        ("simai", "simulator 'simai' is not known; it should be astra-sim, "),
        ("", "simulator '' is not known"),
        ("astra-sim@", "no version ''"),
    ],
)
def test_another_is_refused_with_those_that_are_known(text, words):
    with pytest.raises(HardwareError, match=words):
        astra_version(text)


def test_a_version_reads_one_attribute_and_whatever_no_file_states():
    old, new = VERSIONS["af2492b"], VERSIONS["main"]
    names = [("involve_dims",), ("involved_dim",)]
    assert [old.reads(name) for name in names] == [True, False]
    assert [new.reads(name) for name in names] == [False, True]
    assert all(version.reads(()) for version in VERSIONS.values())
    assert all(version.reads(("involve_dims", "involved_dim")) for version in VERSIONS.values())
