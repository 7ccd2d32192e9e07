"""Made-up layouts, deployments and loads, for tests of what closes them."""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels.serving.tables import (
    ADMISSIONS,
    PARTS,
    SCHEDULERS,
    Deployments,
    Loads,
    PassTables,
)

WHOLE = ("layout", "scheduler", "admission", "prefill_layout")


def pass_tables(**changes: float) -> PassTables:
    """One layout: a 70B model on eight devices, about; flat below 256 tokens, then linear."""
    numbers = {
        "weights_time": 5e-3,
        "token_time": 2e-5,
        "communication_time": 1e-3,
        "head_time": 1e-6,
        "decode_time": 2e-9,
        "prefill_time": 4e-10,
        "draft_time": 0.0,
        "eager_time": 8e-3,
        "graph_time": 1e-4,
        "graph_limit": 512.0,
        "graph_step": 8.0,
        "mixed_graph_limit": 0.0,
        "piecewise_time": 0.0,
        "pass_host": 1e-3,
        "sequence_host": 5e-6,
        "host_hidden": 0.0,
        "half_width": 0.2,
    }
    unknown = changes.keys() - numbers.keys()
    assert not unknown, unknown
    numbers.update(changes)
    tokens = np.concatenate((2.0 ** np.arange(15), [3e4]))
    body = np.zeros((1, tokens.size, len(PARTS)))
    body[0, :, 1] = np.maximum(numbers.pop("weights_time"), numbers.pop("token_time") * tokens)
    body[0, :, 3] = numbers.pop("communication_time")
    sequences = 2.0 ** np.arange(11)
    contexts = 2.0 ** np.arange(6, 18)
    chunks = 2.0 ** np.arange(4, 16)
    before = np.concatenate(([0.0], contexts))
    return PassTables(
        tokens=tokens,
        body=body,
        sequences=sequences,
        head=numbers.pop("head_time") * sequences[None],
        batches=sequences,
        contexts=contexts,
        decode=numbers.pop("decode_time") * sequences[None, :, None] * contexts[None, None, :],
        chunks=chunks,
        before=before,
        prefill=numbers.pop("prefill_time")
        * chunks[None, :, None]
        * (0.5 * chunks[None, :, None] + before[None, None, :]),
        draft=numbers.pop("draft_time") * np.ones((1, sequences.size)),
        **{name: np.array([value]) for name, value in numbers.items()},
    )


def deployment(scheduler: str = "fused", admission: str = "preemption", **values) -> Deployments:
    """One deployment: one rank of one device, with room for much, unless said otherwise.

    Lists of values make several.
    """
    fields = {
        "layout": 0,
        "scheduler": SCHEDULERS.index(scheduler),
        "admission": ADMISSIONS.index(admission),
        "ranks": 1.0,
        "lockstep_ranks": 1.0,
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
        "prefill_lockstep_ranks": 1.0,
        "transfer_latency": 0.0,
        "transfer_time": 0.0,
    } | values
    return columns(Deployments, fields)


def load(**values) -> Loads:
    """One load: prompts and answers of 1,024 tokens in a closed loop of one request.

    Lists of values make several.
    """
    fields = {
        "input_length": 1024.0,
        "output_length": 1024.0,
        "length_spread": 1.0,
        "prefix": 0.0,
        "concurrency": 1.0,
        "rounds": math.inf,
        "request_rate": 0.0,
        "arrival_variation": 1.0,
    } | values
    return columns(Loads, fields)


def columns(kind, fields):
    """Arrays of one length of all fields, which are to be those of the kind."""
    assert fields.keys() == set(kind._fields), fields.keys() ^ set(kind._fields)
    size = max(np.size(value) for value in fields.values())
    return kind(
        **{
            name: np.array(np.broadcast_to(value, size), np.int64 if name in WHOLE else np.float64)
            for name, value in fields.items()
        }
    )
