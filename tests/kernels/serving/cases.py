"""Deployments and loads of one entry, for tests of what closes them."""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels.serving.tables import (
    ADMISSIONS,
    SCHEDULERS,
    Deployments,
    Loads,
)

WHOLE = ("layout", "scheduler", "admission", "prefill_layout")


def deployment(scheduler: str = "fused", admission: str = "preemption", **values) -> Deployments:
    """One deployment: one rank of one device, with room for much, unless said otherwise."""
    fields = {
        "layout": 0,
        "scheduler": SCHEDULERS.index(scheduler),
        "admission": ADMISSIONS.index(admission),
        "ranks": 1.0,
        "stages": 1.0,
        "devices": 1.0,
        "token_budget": 8192.0,
        "max_sequences": 1024.0,
        "blocks": 1e6,
        "block_tokens": 16.0,
        "state_blocks": 0.0,
        "window_tokens": math.inf,
        "draft_length": 0.0,
        "acceptance": 0.0,
        "request_host": 0.0,
        "token_host": 0.0,
        "output_host": 0.0,
        "prefill_layout": -1,
        "prefill_ranks": 0.0,
        "prefill_stages": 1.0,
        "prefill_token_budget": 8192.0,
        "prefill_max_sequences": 1024.0,
        "transfer_latency": 0.0,
        "transfer_time": 0.0,
    } | values
    columns = [
        np.atleast_1d(np.asarray(fields[name], np.int64 if name in WHOLE else np.float64))
        for name in Deployments._fields
    ]
    return Deployments(*columns)


def load(**values) -> Loads:
    """One load: prompts and answers of 1,024 tokens in a closed loop of one request."""
    fields = {
        "input_length": 1024.0,
        "output_length": 1024.0,
        "length_spread": 1.0,
        "prefix": 0.0,
        "concurrency": 1.0,
        "request_rate": 0.0,
        "arrival_variation": 1.0,
    } | values
    return Loads(*(np.atleast_1d(np.float64(fields[name])) for name in Loads._fields))
