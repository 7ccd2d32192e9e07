"""Layouts for tests, by what differs from one device without speculative tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.serving.layouts import (
    ACTIVATION_FORMATS,
    KV_FORMATS,
    LAYOUT_FIELDS,
    WEIGHT_FORMATS,
    Layouts,
)
from perfmodel.software.engine import Engine, load_engine

FORMATS = {
    "weight_precision": WEIGHT_FORMATS,
    "activation_precision": ACTIVATION_FORMATS,
    "kv_precision": KV_FORMATS,
}
DEFAULTS = {"engine": 0, "draft_length": 0, **dict.fromkeys(FORMATS, 0)}


def layouts_of(engine: str | Engine = "vllm", **given: Any) -> Layouts:
    """Return layouts of one engine; numbers, or names of formats, alone or in lists."""
    columns = {}
    size = max((np.size(values) for values in given.values()), default=1)
    for name in LAYOUT_FIELDS:
        values = np.atleast_1d(given.get(name, DEFAULTS.get(name, 1))).tolist()
        words = FORMATS.get(name, ())
        codes = [words.index(x) if isinstance(x, str) else x for x in values]
        columns[name] = np.broadcast_to(np.array(codes, np.int64), (size,)).copy()
    return Layouts([load_engine(engine)], columns)
