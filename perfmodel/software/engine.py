"""Declared behaviour of serving engines: schedulers, limits, kernels, and what their hosts take.

One file per engine and release from which on something changed; a file states what differs from
the one that it extends. The values and their sources stand in ``engines/*.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.base.facts import read_folder, release_key, with_changes
from perfmodel.base.fields import fact

FOLDER = Path(__file__).parent / "engines"

SCHEDULERS = ("fused", "prefill_first")
SPELLINGS = {"tensorrt-llm": "trtllm", "trt-llm": "trtllm", "tensorrt_llm": "trtllm"}
"""Other name of an engine -> its own here."""
ADMISSIONS = ("guaranteed_no_evict", "preemption", "estimate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What a serving engine does beside the operations that mathematics asks for."""

    name: str
    """Of its file: the engine, and the release from which on it holds."""
    engine: str = fact("engine", choices=("vllm", "sglang", "trtllm", "neuronx"))
    since: str = fact("first release that it holds for")
    released: str = fact("month in which that came out, such as 2026-01")
    # Scheduler
    scheduler: str = fact(
        "'fused': chunks of prompts run beside decoded tokens; 'prefill_first': decoding waits",
        choices=SCHEDULERS,
    )
    admission: str = fact(
        "blocks for the whole answer are set aside, taken back when they run out, or estimated",
        choices=ADMISSIONS,
    )
    token_budget: int = fact("tokens of a pass at most, chunks of prompts included", minimum=1)
    device_limits: tuple[tuple[float, ...], ...] = fact(
        "limits by memory: below so many bytes, tokens of a pass, sequences, workspace bytes; 0 "
        "leaves a fact as it is",
        default=(),
    )
    small_devices: str = fact(
        "devices whose names hold this word have the first of `device_limits`", default=""
    )
    max_sequences: int = fact("sequences that run at most, per attention rank", minimum=1)
    block_tokens: int = fact("tokens of a block of the cache", minimum=1)
    memory_share: float = fact(
        "share of memory that the engine takes, or of what is free; 0: what `reserve` leaves"
    )
    reserve: tuple[float, ...] = fact(
        "bytes that `memory_share` leaves: always, per token of a pass, per captured sequence, per "
        "device of a worker, and at least on devices of 60 GiB and more",
        default=(),
    )
    memory_of: str = fact(
        "share of the device's memory, of what weights and a trial run leave free, or of memory "
        "for weights and cache",
        choices=("capacity", "free", "static"),
    )
    workspace_bytes: float = fact("beside weights, cache and activations: libraries", "B")
    communicator_bytes: float = fact(
        "communicators of more than one device; none under `device_limits`", "B", default=0.0
    )
    graph_bytes: float = fact(
        "captured graphs of a layer, where the engine counts them inside its share",
        "B",
        default=0.0,
    )
    cache_groups: str = fact(
        "'sequences': windows and states are kept per sequence; 'full': windows are kept in full "
        "beside full layers; 'alike' and 'all': layers of a kind make groups that share blocks, "
        "where their pages are alike, or always",
        choices=("sequences", "full", "alike", "all"),
        default="sequences",
    )
    prints_groups: bool = fact(
        "the tokens of a cache are printed as if layers of all groups kept everything",
        default=False,
    )
    checks_all_stages: bool = fact(
        "a context is checked for all layers against the memory of the smallest stage",
        default=False,
    )
    state_bytes: float = fact(
        "a number of a recurrent state whose format the model does not state", "B", default=4.0
    )
    state_share: float = fact(
        "states' share of the cache over that of keys and values; 0: they share blocks",
        default=0.0,
    )
    state_slots: int = fact("slots of states per sequence that runs", default=1, minimum=1)
    mxfp4_padding: tuple[int, ...] = fact(
        "columns of which experts' hidden size and width are multiples, in mxfp4", default=(1, 1)
    )
    mxfp4_padding_blackwell: tuple[int, ...] = fact(
        "the same on data-centre Blackwell", default=(1, 1)
    )
    logit_bytes: float = fact(
        "what a trial run makes of a logit of each sequence: copies, sorts, sums", "B"
    )
    prefix_caching: bool = fact("prompts that begin alike share blocks unless switched off")
    shared_token_budget: bool = fact(
        "the token budget is a worker's: its attention ranks divide it among them"
    )
    prefill_sequences: int = fact("prompts in a pass of a prefill worker at most", minimum=1)
    handover_host: float = fact("handshakes and polls between the pools, per request", "s")
    layerwise_transfer: bool = fact(
        "caches of a layer go to a decode worker while the next layers of a prompt run"
    )
    # Launching
    graph_limit: int = fact("largest batch of decoded tokens that is captured as a graph")
    graph_step: int = fact("captured sizes are 1, 2, 4 and multiples of this", minimum=1)
    graphs_of_sequences: bool = fact("captured sizes count sequences, whatever each verifies")
    mixed_graph_limit: int = fact(
        "largest pass with chunks of prompts whose kernels between attentions are captured"
    )
    # Host
    operation_time: float = fact("host time of an eager operation, its kernels launched", "s")
    piecewise_time: float = fact("the same of a piece that is captured between attentions", "s")
    graph_time: float = fact("launch of a captured pass", "s")
    pass_host: float = fact("scheduler, inputs and outputs of a pass", "s")
    sequence_host: float = fact("the same per sequence in it", "s")
    host_hidden: float = fact("share of both that runs beside the pass before")
    layer_gap: float = fact(
        "device time per layer of a captured pass between kernels: starts, ends, small copies", "s"
    )
    request_host: float = fact("a request's way to the scheduler and its first token's back", "s")
    token_host: float = fact("tokenisation, per token of a prompt", "s")
    output_host: float = fact("from the end of a pass to the client", "s")
    # Kernels
    own_all_reduce: bool = fact("small buffers are summed by one- and two-shot kernels of its own")
    bus_all_reduce: int = fact("most devices on a bus that those kernels serve")
    copies_to_reduce: bool = fact(
        "where switches reduce, those kernels work on a buffer of their own, into which data are "
        "copied first"
    )
    all_reduce_call_time: float = fact("host time of an all-reduce that is called by itself", "s")
    fuses_all_reduce_norm: str = fact(
        "whether residual addition and norm run inside that kernel: of models with experts alone",
        choices=("never", "experts", "always"),
    )
    fused_casts: bool = fact("casts to low precision run inside the norm or activation ahead")
    expert_kernel: str = fact(
        "library that runs routed experts, of `perfmodel.compute.grouped_gemm.KERNELS`"
    )
    expert_kernel_blackwell: str = fact("the same on data-centre Blackwell")
    expert_all_to_all: bool = fact(
        "with attention data parallelism, tokens go to the ranks of their experts alone where "
        "those ranks outnumber a token's experts; else all tokens go to all"
    )
    gathers_quantised: bool = fact("tokens that go to all ranks are quantised before")
    shared_stream_tokens: int = fact(
        "tokens of a pass up to which shared experts run on a stream beside routed ones"
    )
    prefill_qkv_passes: float = fact(
        "passes over queries, keys and values ahead of prefill kernels, beyond their rotation and "
        "append; not of latent attention"
    )
    prefill_qkv_passes_blackwell: float = fact("the same on Blackwell")
    wide_prefill: bool = fact("prefill over an fp8 cache computes in 16 bits all the same")
    latent_call_time: float = fact(
        "host time of a call of latent attention that is not captured, at least", "s"
    )


_RECORDS = read_folder(FOLDER, {"": Engine}, StrategyError)

ENGINES: Mapping[str, Engine] = {name: it.facts[""] for name, it in _RECORDS.items()}
"""Releases by the names of their files."""

SOURCES: Mapping[str, Mapping[str, str]] = {name: it.source for name, it in _RECORDS.items()}
"""Release -> field -> where its value is from."""

TITLES: Mapping[str, str] = {name: it.title for name, it in _RECORDS.items()}
"""Release -> what it is, in a line."""

IDENTITY = ("engine", "since")
"""Facts that say which release it is; they are chosen by its name."""


def load_engine(name: str | Engine, version: str = "", /, **changes: Any) -> Engine:
    """Return what holds for an engine's release, with single facts changed.

    Parameters
    ----------
    name : str or Engine
        Engine (``vllm``), or with its release (``vllm-0.12``).
    version : str
        Release; default, and where it has no number: the newest that is known.
    **changes
        Values of facts; the name of the result says which differ from the release's.

    Raises
    ------
    StrategyError
        Unknown engine or fact, or a value that the fact cannot have.
    """
    engine = name if isinstance(name, Engine) else _release(name, version)
    found: Engine = with_changes(engine, changes, ENGINES, "engine", StrategyError)
    return found


def _release(name: str, version: str) -> Engine:
    plain = name.lower()
    for spelling, own in SPELLINGS.items():
        plain = plain.replace(spelling, own, 1)
    engine, _, given = plain.partition("-")
    releases = sorted(
        (item for item in ENGINES.values() if item.engine == engine),
        key=lambda item: release_key(item.since),
    )
    if not releases:
        known = sorted({item.engine for item in ENGINES.values()})
        raise StrategyError(f"unknown engine '{name}'{did_you_mean(engine, known)}")
    if given and not release_key(given):
        raise StrategyError(
            f"engine '{name}': a release is numbers, as in {engine}-{releases[-1].since}"
        )
    wanted = release_key(version or given)
    if not wanted:
        return releases[-1]
    held = [item for item in releases if release_key(item.since) <= wanted]
    return held[-1] if held else releases[0]
