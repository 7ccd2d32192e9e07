"""Measured collectives, row by row; see `perfmodel.measured.kind` for the rest.

Read are tables (columns of docs/calibration.md), and the output of nccl-tests and rccl-tests
(`perfmodel.measured.nccl_tests`), of which every size gives a row out of place and one in
place. Sizes are those of nccl-tests throughout. What a library of collectives does by itself is
scored, and the all-reduces of serving engines (`perfmodel.serving.communication`), which run
kernels of their own for small buffers and call the library for others. Calls of the library through
a framework, timed one by one, also hold that framework's time on the host.

`SERVING_ALL_REDUCE` reads only calls that are replayed as a graph: the constants of the engines'
kernels are fitted to these, others also hold the engine's time on the host.

`EXCHANGE` are token exchanges of experts: dispatch sends every token to the ranks of its experts,
combine brings the results back (DeepEP). Compared is the time of the transfer; ``notify_us``, in
which ranks tell each other how many tokens come and wait for the slowest host, is another kernel
and left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.collectives import ALGORITHMS, COLLECTIVES, PROTOCOLS, bus_factor
from perfmodel.base.errors import did_you_mean
from perfmodel.base.regimes import regime_name
from perfmodel.compute.collectives import collective_choices
from perfmodel.compute.expert_exchange import COMPUTE_UNITS, PHASES, moe_exchange_times
from perfmodel.hwprofiles import Hardware, list_aliases, list_hardware
from perfmodel.measured.kind import (
    Case,
    Columns,
    KernelKind,
    kernel_hardware,
    measured_time,
    stated,
)
from perfmodel.measured.nccl_tests import COLLECTIVE_OF, NcclTest, is_nccl_tests, read_nccl_tests
from perfmodel.measured.rows import MeasuredRow, Skip
from perfmodel.serving.communication import all_reduce_times
from perfmodel.software.engine import load_engine
from perfmodel.sweeps.collective_grids import strides

ALIASES = {
    "collective": "op",
    "n_nodes": "nodes",
    "msg_bytes": "bytes",
    "measured_us": "time_us",
}

# Name of the model by the name in a table or of a test.
COLLECTIVE_NAMES: Mapping[str, str] = {
    **{name: name for name in COLLECTIVES},
    **COLLECTIVE_OF,
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "send_recv": "point_to_point",
}
LIBRARIES = ("", "nccl", "rccl")
WAITED = "primus benchmark"
"""Words in ``source`` of a benchmark that reads the host's clock around one call of PyTorch and the
wait for its end (Primus, primus/tools/benchmark/rccl_bench.py, timed_run): the device has nothing
to do until the host has called, so the host's time is in every row."""
PER_CALL = "per-call"
_ENGINE = re.compile(r"(sglang|vllm|trtllm)(?:_(graph|eager))?")
"""Cells of ``impl``: engine, and whether its calls are replayed or wait for the host one by one;
TensorRT-LLM's always are replayed."""
# nccl-tests runs these in place too, but into the buffer that it still sends.
NOT_IN_PLACE = ("all_to_all", "point_to_point")
LOG_COLUMNS = (
    "hardware",
    "op",
    "impl",
    "n_gpus",
    "nodes",
    "bytes",
    "dtype",
    "placement",
    "time_us",
    "wrong",
)
_VENDORS = re.compile(r"^(?:NVIDIA|AMD|Instinct|Tesla|\s)+")
_WORDS = re.compile(r"[A-Za-z][A-Za-z0-9-]*[0-9][A-Za-z0-9-]*")


class EngineCall(NamedTuple):
    """An all-reduce of a serving engine.

    Attributes
    ----------
    engine : str
    from_host : bool
        Called one by one, not replayed.
    """

    engine: str
    from_host: bool


def read(path: str | os.PathLike[str]) -> tuple[list[str], list[MeasuredRow]] | None:
    """Read the output of nccl-tests; None where the file is none.

    Raises
    ------
    FormatError
        It is, but broken (file and line named).
    """
    if not is_nccl_tests(path):
        return None
    tests = read_nccl_tests(path)
    return list(LOG_COLUMNS), [row for test in tests for row in _rows_of(os.fspath(path), test)]


def _rows_of(file: str, test: NcclTest) -> list[MeasuredRow]:
    device = _VENDORS.sub("", test.device)
    impl = "nccl" if test.timer == "time" else test.timer
    found = []
    for row in test.rows:
        halves = {"out_of_place": row.out_of_place, "in_place": row.in_place}
        if test.collective in NOT_IN_PLACE:
            halves.pop("in_place")
        for placement, timing in halves.items():
            if not row.size or not timing.time:  # less than an element per rank
                continue
            cells = (device, test.test, impl, test.members, test.nodes, row.size, row.dtype)
            measured = (placement, f"{timing.time * 1e6:.10g}", timing.wrong or "")
            texts = [str(cell) for cell in (*cells, *measured)]
            named = dict(zip(LOG_COLUMNS, texts, strict=True))
            found.append(MeasuredRow(named, file, row.line))
    return found


def derived(row: MeasuredRow) -> dict[str, str]:
    """Return the ``regime`` of a row, and its ``hardware`` where only its source says it."""
    size = row.positive("bytes")
    found = {"regime": regime_name("collective", size) if size else ""}
    if "hardware" not in row.cells:
        found["hardware"] = _named_hardware(row.text("source"), PurePath(row.file).stem)
    return found


def _named_hardware(*texts: str) -> str:
    """Return the profile that the first word which is a name or an alias means, or nothing."""
    known = _known_hardware()
    words = (word.lower() for text in texts for word in _WORDS.findall(text))
    return next((known[word] for word in words if word in known), "")


@lru_cache(maxsize=1)
def _known_hardware() -> Mapping[str, str]:
    aliases = {alias.lower(): name for alias, name in list_aliases().items()}
    return aliases | {name.lower(): name for name in list_hardware()}


def case_of(row: MeasuredRow) -> Case:
    """Turn a row into what the model needs.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    name = row.lower("op")
    if name not in COLLECTIVE_NAMES:
        raise Skip("unknown collective", f"{name}{did_you_mean(name, COLLECTIVE_NAMES)}")
    impl = row.lower("impl")
    if PER_CALL in impl:
        raise Skip("per-call timing through a framework", impl, scorable=False)
    if impl == "cputime":
        raise Skip("time of the host, not of the device", scorable=False)
    if row.text("wrong") not in ("", "0"):
        raise Skip("wrong results", f"{row.text('wrong')} elements", scorable=False)
    engine = _ENGINE.fullmatch(impl)
    if not engine and impl not in LIBRARIES:
        raise Skip("unknown implementation", impl)
    if engine and COLLECTIVE_NAMES[name] != "all_reduce":
        raise Skip("no all-reduce of a serving engine", f"{impl}, {name}")
    if not row.text("hardware"):
        raise Skip("hardware not stated", scorable=False)
    hardware, notes = kernel_hardware(row)
    members, nodes = stated(row, "n_gpus"), row.whole("nodes") or 1
    if members < 2:
        raise Skip("a group of one moves nothing", scorable=False)
    if members % nodes:
        raise Skip("members spread unevenly over nodes", f"{members} on {nodes}")
    stride = int(strides(hardware, members, members // nodes)[0])
    if not stride:
        raise Skip("more members per node than the node has devices", f"{members // nodes}")
    size = row.positive("bytes")
    if size is None:
        raise Skip("shape not stated", "bytes", scorable=False)
    sizes = {"size": size, "members": float(members), "stride": float(stride)}
    # What such a call takes of the host, from another engine of PyTorch and other machines.
    waited = WAITED in row.lower("source")
    sizes["host"] = load_engine("vllm").all_reduce_call_time if waited else 0.0
    variant: str | EngineCall = COLLECTIVE_NAMES[name]
    if engine:
        variant = EngineCall(engine[1], engine[2] == "eager")
    return Case(hardware, variant, sizes, measured_time(row), notes)


def price(hardware: Hardware, collective: str | EngineCall, columns: Columns) -> Columns:
    """Price rows of one system and collective: ``time`` [s], algorithm, protocol, busbw."""
    members = columns["members"].astype(np.int64)
    stride = columns["stride"].astype(np.int64)
    if isinstance(collective, EngineCall):
        engine, sizes = load_engine(collective.engine), columns["size"]
        time = all_reduce_times(
            hardware, engine, sizes, members, stride, called=collective.from_host
        )
        return {"time": time, "bus_bandwidth": sizes / time * bus_factor("all_reduce", members)}
    found = collective_choices(hardware, collective, columns["size"], members, stride)
    time = found.time + columns["host"]
    return {
        "time": time,
        "bus_bandwidth": columns["size"] / time * bus_factor(collective, members),
        "algorithm": np.array(ALGORITHMS)[found.algorithm],
        "protocol": np.array(PROTOCOLS)[found.protocol],
    }


KIND = KernelKind(
    name="collective",
    needed=("op", "n_gpus", "bytes", "time_us"),
    group_by=("hardware", "op", "n_gpus", "regime"),
    aliases=ALIASES,
    whole=("n_gpus", "nodes"),
    positive=("bytes",),
    derived=derived,
    read=read,
    case_of=case_of,
    price=price,
    kernel_class="collective",
    calibration="network",
    alike=("op", "n_gpus", "nodes"),
)


def replayed_case_of(row: MeasuredRow) -> Case:
    """Turn a row into what the model needs.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    case = case_of(row)
    if not isinstance(case.variant, EngineCall) or case.variant.from_host:
        impl = row.lower("impl")
        raise Skip("no replayed call of a serving engine", impl, scorable=False)
    return case


SERVING_ALL_REDUCE = replace(
    KIND,
    name="serving-all-reduce",
    group_by=("hardware", "impl", "n_gpus", "regime"),
    read=lambda path: None,
    case_of=replayed_case_of,
    keys="shot_",
)


MODES = {
    "deepep_normal": "normal",
    "deepep_low_latency": "low_latency",
    "normal": "normal",
    "low_latency": "low_latency",
}
EXCHANGE_COUNTS = ("nodes", "ep", "tokens_per_rank", "hidden", "topk", "experts")


class Exchange(NamedTuple):
    """What is the same for all rows priced in one call."""

    phase: str
    mode: str
    share: float


def exchange_derived(row: MeasuredRow) -> dict[str, str]:
    """Return the ``regime`` of a row, from the bytes of its choices at 2 bytes an element."""
    counts = [row.whole(name) for name in ("tokens_per_rank", "hidden", "topk")]
    known = [count for count in counts if count is not None]
    size = 2.0 * float(np.prod(known)) if len(known) == len(counts) else 0.0
    return {"regime": regime_name("collective", size) if size else ""}


def exchange_case_of(row: MeasuredRow) -> Case:
    """Turn a row into what the model needs.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    mode, phase = row.lower("mode"), row.lower("phase")
    if mode not in MODES:
        raise Skip("unknown mode of exchange", f"'{mode}'{did_you_mean(mode, MODES)}")
    if phase not in PHASES:
        raise Skip("unknown phase of exchange", f"'{phase}'{did_you_mean(phase, PHASES)}")
    hardware, notes = kernel_hardware(row)
    members, nodes = stated(row, "ep"), row.whole("nodes") or 1
    if members < 2:
        raise Skip("a group of one moves nothing", scorable=False)
    if members % nodes:
        raise Skip("members spread unevenly over nodes", f"{members} on {nodes}")
    top_k, experts = stated(row, "topk"), stated(row, "experts")
    if experts < max(members, top_k):
        raise Skip("too few experts for the ranks or choices", f"{experts}", scorable=False)
    stride = int(strides(hardware, members, members // nodes)[0])
    if not stride:
        raise Skip("more members per node than the node has devices", f"{members // nodes}")
    sizes = {
        "tokens_per_rank": float(stated(row, "tokens_per_rank")),
        "hidden": float(stated(row, "hidden")),
        "top_k": float(top_k),
        "experts": float(experts),
        "members": float(members),
        "stride": float(stride),
        "compute_units": float(row.whole("sms") or COMPUTE_UNITS),
    }
    groups = row.whole("topk_groups") or nodes  # nodes among which a token chooses
    share = min(groups, nodes) / nodes
    return Case(hardware, Exchange(phase, MODES[mode], share), sizes, measured_time(row), notes)


def exchange_price(hardware: Hardware, variant: Exchange, columns: Columns) -> Columns:
    """Price rows of one system, phase and mode: ``time`` [s]."""
    sizes: dict[str, Any] = dict(columns)
    sizes["share"] = variant.share
    time = moe_exchange_times(hardware, variant.phase, variant.mode, **sizes)
    return {"time": time}


EXCHANGE = KernelKind(
    name="moe-alltoall",
    needed=(
        *("hardware", "mode", "phase", "ep", "tokens_per_rank", "hidden", "topk", "experts"),
        "time_us",
    ),
    group_by=("hardware", "mode", "phase", "nodes", "regime"),
    whole=(*EXCHANGE_COUNTS, "sms", "topk_groups"),
    derived=exchange_derived,
    case_of=exchange_case_of,
    price=exchange_price,
    kernel_class="collective",
    calibration="network",
    keys="exchange_",
    alike=("mode", "phase", "ep", "nodes", "hidden", "topk", "experts"),
)
