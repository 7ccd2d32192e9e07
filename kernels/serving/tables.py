"""What passes of served models cost, and what a scheduler does with them: arguments of kernels.

A *pass* is one run of the model over some tokens: chunks of prompts, decoded tokens, or both.
A *layout* is what its cost depends on beside the tokens: model, engine, degrees, formats, draft
length, on one hardware. A *deployment* is a layout with limits and a scheduler; a *load* is what
it is asked to do. All numbers count for one *attention rank*: the devices that share one batch
(with attention data parallelism a worker has several, which take requests in turn).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.kernels.serving.variables import ROW_VARIABLES
from perfmodel.kernels.variables import row_numbers

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

ATTENTION, MATRICES, EXPERTS, COMMUNICATION, OTHER = range(5)
PARTS = ("attention", "matrices", "experts", "communication", "other")
"""Parts of the device time of a pass; "attention" are all mixers with memory of a sequence."""

FUSED, PREFILL_FIRST = range(2)
SCHEDULERS = ("fused", "prefill_first")
"""Chunks of prompts run beside decoded tokens, or prompts first while decoding waits."""

RESERVE, PREEMPT, ESTIMATE = range(3)
ADMISSIONS = ("guaranteed_no_evict", "preemption", "estimate")
"""Whether blocks for all output are set aside, taken back when they run out, or estimated."""


class PassTables(NamedTuple):
    """Device and host seconds of passes of all layouts of one hardware.

    Between knots tables are linear in the numbers themselves; beyond the last knot they go on
    as between the last two.

    Attributes
    ----------
    tokens : shape (T,)
        Knots: tokens of a pass on an attention rank.
    body : shape (layout, T, PARTS)
        Everything that depends on tokens alone, of all layers [s].
    sequences : shape (S,)
        Knots: sequences that give a token.
    head : shape (layout, S)
        Final norm, logits and sampling [s].
    batches, contexts : shape (B,), (C,)
        Knots: decoding sequences, and tokens that each keeps.
    decode : shape (layout, B, C)
        Mixers of decoding sequences, all layers [s]: with speculation, over all verified tokens.
    chunks, before : shape (Q,), (D,)
        Knots: tokens of one prompt in the pass, and tokens of it that came before.
    prefill : shape (layout, Q, D)
        Mixers of one chunk, all layers [s].
    draft : shape (layout, B)
        Making the speculative tokens of a pass, by decoding sequences [s]; 0 for none.
    eager_time : shape (layout,)
        Host seconds in which all kernels of an eager pass are launched.
    graph_time : shape (layout,)
        Host seconds in which a captured pass is launched.
    graph_limit, graph_step : shape (layout,)
        Largest pass of decoded tokens that is captured (0: none), and its sizes: 1, 2, 4, then
        multiples of `graph_step`; a captured pass runs at the next size.
    mixed_graph_limit : shape (layout,)
        Largest pass with chunks of prompts whose kernels between attentions are captured
        (piecewise); launches then cost `piecewise_time`. 0: none.
    piecewise_time : shape (layout,)
        Host seconds of launching such a pass.
    pass_host, sequence_host : shape (layout,)
        Host seconds per pass, and per sequence in it: scheduling, inputs, outputs.
    host_hidden : shape (layout,)
        Share of those that runs beside the pass before, 0 to 1.
    half_width : shape (layout,)
        Half the 10-90 % band of a pass, relative.
    """

    tokens: Floats
    body: Floats
    sequences: Floats
    head: Floats
    batches: Floats
    contexts: Floats
    decode: Floats
    chunks: Floats
    before: Floats
    prefill: Floats
    draft: Floats
    eager_time: Floats
    graph_time: Floats
    graph_limit: Floats
    graph_step: Floats
    mixed_graph_limit: Floats
    piecewise_time: Floats
    pass_host: Floats
    sequence_host: Floats
    host_hidden: Floats
    half_width: Floats


class Deployments(NamedTuple):
    """Limits and policies of deployments, one entry each; counts are per attention rank.

    Attributes
    ----------
    layout : shape (deployment,)
        Row of `PassTables`; of a disaggregated deployment that of a decode worker.
    scheduler, admission : shape (deployment,)
        Positions in `SCHEDULERS` and `ADMISSIONS`.
    ranks : shape (deployment,)
        Attention ranks of all workers together: requests divide evenly among them.
    lockstep_ranks : shape (deployment,)
        Attention ranks whose passes run in step, as they exchange tokens with shared experts:
        each waits for the longest; 1 where every rank runs on its own.
    stages : shape (deployment,)
        Pipeline stages p: p batches are under way, each of a p-th of the running sequences.
    devices : shape (deployment,)
        Devices of all workers (of both pools).
    token_budget : shape (deployment,)
        Tokens of a pass at most; of a chunk, where a scheduler runs prompts first.
    max_sequences : shape (deployment,)
        Sequences that run at most.
    blocks, block_tokens : shape (deployment,)
        Blocks of the cache, and tokens of each; `state_blocks` more per sequence whatever its
        length (recurrent states, windows).
    state_blocks : shape (deployment,)
    window_tokens : shape (deployment,)
        Tokens of a sequence that are kept at most, where all layers have windows; inf without.
    draft_length, acceptance : shape (deployment,)
        Drafted tokens gamma per pass, and the chance alpha that one is taken.
    request_host, token_host : shape (deployment,)
        Seconds ahead of the scheduler per request (transport, queue between processes), and per
        token of its prompt (tokenisation). They add to the first token, not to a rank's work.
    output_host : shape (deployment,)
        Seconds from the end of a pass until a client has its token.
    prefill_layout : shape (deployment,)
        Layout of a prefill worker; -1 where there is one pool.
    prefill_ranks, prefill_stages, prefill_token_budget, prefill_max_sequences :
        As above, of the prefill pool.
    prefill_lockstep_ranks : shape (deployment,)
        Ranks of a prefill worker that pass in step.
    transfer_latency, transfer_time : shape (deployment,)
        Seconds of handing over a sequence, and per token of it, that nothing hides.
    """

    layout: Integers
    scheduler: Integers
    admission: Integers
    ranks: Floats
    lockstep_ranks: Floats
    stages: Floats
    devices: Floats
    token_budget: Floats
    max_sequences: Floats
    blocks: Floats
    block_tokens: Floats
    state_blocks: Floats
    window_tokens: Floats
    draft_length: Floats
    acceptance: Floats
    request_host: Floats
    token_host: Floats
    output_host: Floats
    prefill_layout: Integers
    prefill_ranks: Floats
    prefill_stages: Floats
    prefill_token_budget: Floats
    prefill_max_sequences: Floats
    prefill_lockstep_ranks: Floats
    transfer_latency: Floats
    transfer_time: Floats


class Loads(NamedTuple):
    """What deployments are asked to do, one entry per load.

    Attributes
    ----------
    input_length, output_length : shape (load,)
        Tokens I of a prompt and O of an answer: the longest.
    length_spread : shape (load,)
        Lengths are uniform in [r I, I] and [r O, O]; r = 1: all alike.
    prefix : shape (load,)
        Tokens of every prompt that the cache holds, on average (hit rate times length).
    concurrency : shape (load,)
        Requests that clients keep under way (closed loop); 0 in an open loop.
    rounds : shape (load,)
        Requests that a client of a closed loop makes, one after the other: the first of all
        come at once, and it takes some until they are spread; inf: the steady state.
    request_rate : shape (load,)
        Requests per second that arrive (open loop) [1/s]; 0 in a closed loop.
    arrival_variation : shape (load,)
        Squared coefficient of variation of the times between arrivals; 1: Poisson.
    """

    input_length: Floats
    output_length: Floats
    length_spread: Floats
    prefix: Floats
    concurrency: Floats
    rounds: Floats
    request_rate: Floats
    arrival_variation: Floats


ServingRows = row_numbers("ServingRows", ROW_VARIABLES, "status")
"""Class of `ROWS`; pickled by name."""
ROWS = ServingRows(*range(len(ROW_VARIABLES) + 1))
"""Which row of a result holds a variable, all in SI units; the last one a code of `STATES`."""

STABLE, UNSTABLE, NO_ROOM, NO_STAGE_WORK = range(4)
STATES = ("valid", "rate_above_capacity", "cache_below_one_request", "fewer_requests_than_ranks")
"""What comes of a load on a deployment; but for the first and last, variables are NaN."""
