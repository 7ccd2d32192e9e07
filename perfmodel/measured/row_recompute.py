"""What a row of a measured table recomputes, in the words of its software."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from perfmodel.measured.rows import MeasuredRow
from perfmodel.software.recompute import MODULES, OFFLOADED_POLICIES, SAVING_POLICIES, WORDS

SPELLED: Mapping[str, str] = {
    "norm": "layernorm norm_linear",
    "rmsnorm": "layernorm norm_linear",
    "act": "activation moe_act",
    "mla up-proj": "mla_up_proj",
}
"""Modules as tables call them."""


class RowRecompute(NamedTuple):
    """What a row says.

    Attributes
    ----------
    level : str
        Empty: it does not say.
    layers : mapping
        Fields of the strategy, where only some layers are recomputed.
    words : str
        The fact `selective_recompute`; empty: as the software means it.
    waiting : tuple of str
        Saved outputs that wait in the host's memory.
    notes : tuple of str
    """

    level: str = ""
    layers: Mapping[str, Any] = {}
    words: str = ""
    waiting: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def recompute_of(row: MeasuredRow) -> RowRecompute:
    """Return what a row recomputes."""
    text = row.lower("recompute")
    if found := re.match(r"full \((block|uniform) (\d+)", text):
        method, layers = found[1], int(found[2])
        return RowRecompute("full", {"recompute_method": method, "recompute_num_layers": layers})
    if text in ("", "full", "selective") or text.startswith("no"):
        return RowRecompute("none" if text.startswith("no") else text)
    note = (f"recompute '{row.text('recompute')}'",)
    if text.startswith("full"):
        return RowRecompute("full", notes=(*note, "taken as full"))
    if text.startswith("selective"):
        words = _modules(text)
        notes = () if words else (*note, "taken as selective")
        return RowRecompute("selective", words=words, notes=notes)
    return _policy(text, note)


def _modules(text: str) -> str:
    """Return the modules of a list in brackets, in the order of `WORDS`; empty without one."""
    found = re.search(r"[\[(]([^\])]*)[\])]", text)
    listed = re.split(r"\s*[,;]\s*", found[1].strip()) if found else []
    words = " ".join(SPELLED.get(word, word if word in MODULES else "") for word in listed).split()
    return " ".join(word for word in WORDS if word in words)


def _policy(text: str, note: tuple[str, ...]) -> RowRecompute:
    """Return what a policy of MaxText's repeats."""
    name = re.sub(r"^offload (\w+)$", r"\1_offloaded", text).replace("_flash", "_with_context")
    if name in OFFLOADED_POLICIES:
        words = OFFLOADED_POLICIES[name]
        return RowRecompute("selective", words=words, waiting=tuple(words.split()))
    if name in SAVING_POLICIES:
        return RowRecompute("selective", words=SAVING_POLICIES[name])
    if "offload" in text or "custom" in text:
        return RowRecompute("full", notes=(*note, "taken as full: no tensors are named"))
    return RowRecompute(notes=(*note, "not understood"))
