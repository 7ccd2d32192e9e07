"""From the hardware that was typed to rows of hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.cli.shared.printing import remark

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware


def load_rows(
    names: Sequence[str], settings: Mapping[str, Any], swept: Mapping[str, Sequence[float]]
) -> tuple[list[Hardware], dict[str, list[float]]]:
    """Return `perfmodel.hwprofiles.rows.hardware_rows`, and say how names were understood."""
    from perfmodel.hwprofiles.rows import hardware_rows

    rows, values = hardware_rows(names, settings, swept)
    for note in dict.fromkeys(note for row in rows for note in row.notes):
        if note.startswith("'"):  # the alias could have meant another device
            remark(f"note: {note}")
    return rows, values
