"""Which wing a test file belongs to, so that the tests of one can run alone."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from perfmodel.base.wings import WINGS as WINGS
from tests.data import ROOT

CORE, SEVERAL = "core", "several"
IMPORTED = re.compile(rf"perfmodel\.(?:cli\.|kernels\.)?({'|'.join(WINGS)})\b")


@functools.cache
def wing_of(path: Path) -> str:
    """Return the wing of a test file: of its folder, else of what it names, else the core.

    Tests of the whole, as oracles and properties, may name several wings; they run with all.
    """
    parts = path.relative_to(ROOT / "tests").parts
    for part in parts[:-1]:
        if part in WINGS:
            return part
    stem = path.stem.removeprefix("test_")
    named = set(IMPORTED.findall(path.read_text(encoding="utf-8")))
    if parts[0] == "cli" and stem in WINGS:
        named = {stem}
    return SEVERAL if len(named) > 1 else next(iter(named), CORE)
