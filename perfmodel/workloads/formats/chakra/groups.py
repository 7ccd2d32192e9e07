"""Communicator groups of a trace: a JSON object of names to lists of ranks.

As ASTRA-sim reads it (``--comm-group-configuration``)::

    {"1": [0, 1], "2": [4, 5]}

A communication node names its group; the ranks stand in the order of their ring.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfmodel.base.errors import FormatError
from perfmodel.base.files import JsonWords, atomic_path, parse_json, read_text, shortened

Groups = dict[str, tuple[int, ...]]

_WORDS = JsonWords(
    "{path}:{line}: not JSON: {reason}",
    "{path}: not JSON: {reason}",
    twice="{path}: '{key}' twice",
    no_object='{path}: expected an object such as {{"1": [0, 1]}}',
)


def read_groups(path: str | Path, devices: int | None = None) -> Groups:
    """Read the ranks of each group.

    Parameters
    ----------
    path : str or Path
    devices : int, optional
        Number of ranks; larger ranks are refused.

    Returns
    -------
    dict of str to tuple of int

    Raises
    ------
    FormatError
        The file cannot be read, is not JSON, or a group is not a list of different ranks.
    """
    content = parse_json(read_text(path, "a JSON object of groups"), path, _WORDS)
    try:
        return check_groups(content, devices)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def write_groups(groups: Mapping[str, tuple[int, ...]], path: str | Path) -> None:
    """Write the ranks of each group, in the form that ASTRA-sim reads.

    Raises
    ------
    FormatError
        A group is not a list of different ranks.
    DataError
        The file cannot be written.
    """
    content = check_groups(groups)
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content), encoding="utf-8")


def check_groups(groups: Mapping[str, Any], devices: int | None = None) -> Groups:
    """Return the groups as tuples of ranks, or say what is wrong with them.

    Raises
    ------
    FormatError
        A group is empty or not a list; a rank is not a whole number, is negative, not below
        `devices`, or twice in its group.
    """
    checked = {}
    for name, ranks in groups.items():
        where = f"group '{shortened(name)}'"
        if not isinstance(ranks, list | tuple) or not ranks:
            raise FormatError(f"{where}: expected a list of ranks with at least one")
        for rank in ranks:
            if type(rank) is not int or not 0 <= rank < 2**31:
                raise FormatError(
                    f"{where}: rank {shortened(repr(rank))} should be a whole number >= 0"
                )
            if devices is not None and rank >= devices:
                raise FormatError(f"{where}: rank {rank}, but the ranks are 0 to {devices - 1}")
        if len(set(ranks)) != len(ranks):
            twice = Counter(ranks).most_common(1)[0][0]
            raise FormatError(f"{where}: rank {twice} twice")
        checked[name] = tuple(ranks)
    return checked
