"""Small systems, and a run of their cores that follows barriers and what waits for what."""

from __future__ import annotations

import functools
from collections import defaultdict

import numpy as np

from perfmodel import load_model
from perfmodel.wafer.cores.expert_routes import Routes
from perfmodel.wafer.cores.instructions import (
    ADD,
    BACK,
    BARRIER,
    COPY,
    CORE,
    GEMM,
    MULTICAST,
    OPCODE,
    WAITS,
    Instructions,
)
from perfmodel.wafer.cores.products import CoreOperation
from perfmodel.wafer.cores.program import core_operations
from perfmodel.wafer.routing import core_routing
from perfmodel.wafer.setting import CoreSetting, check_layers
from perfmodel.wafer.system import WaferSystem

SMALL = (2, 3)
LATENT = WaferSystem(
    8, (2, 4), SMALL, data_parallel=2, tensor_parallel=2, sequence_parallel=2, expert_parallel=8,
    shared_copies=2,
)  # fmt: skip
SETTINGS = {
    "absorbed": ("deepseek-v3", LATENT, "decode", 5, "decode3"),
    "naive": ("deepseek-v3", LATENT, "prefill", 3, "prefill3"),
    "dense": ("deepseek-v3", LATENT, "decode", 4, "decode0"),
    "split experts": (
        "deepseek-v3",
        WaferSystem(
            8, (2, 4), SMALL, tensor_parallel=2, data_parallel=4, ffn_tensor_parallel=2,
            expert_parallel=2, ffn_data_parallel=2,
        ),
        "decode", 6, "decode3",
    ),
    "gathered": (
        "deepseek-v3",
        WaferSystem(4, (2, 2), SMALL, data_parallel=4, expert_parallel=4,
                    expert_exchange="allgather"),
        "decode", 4, "decode3",
    ),
    "idle": (
        "deepseek-v3",
        WaferSystem(4, (2, 2), SMALL, data_parallel=4, expert_parallel=4,
                    expert_exchange="multicast"),
        "decode", 2, "decode3",
    ),
    "idle cluster": (
        "mixtral-8x7b",
        WaferSystem(4, (2, 2), SMALL, data_parallel=2, tensor_parallel=2, expert_parallel=4),
        "decode", 1, "decode0,lm_head",
    ),
    "stages": (
        "llama-3-8b",
        WaferSystem(8, (2, 4), SMALL, tensor_parallel=2, sequence_parallel=2, pipeline_parallel=2,
                    ffn_tensor_parallel=4),
        "decode", 3, "decode0,decode15,decode16,lm_head",
    ),
    "grouped prompt": (
        "llama-3-8b",
        WaferSystem(2, (1, 2), SMALL, sequence_parallel=2, ffn_tensor_parallel=2),
        "prefill", 2, "prefill0,lm_head",
    ),
}  # fmt: skip


def setting(name: str) -> CoreSetting:
    """Return a small set-up."""
    model, system, phase, batch, _ = SETTINGS[name]
    return CoreSetting(load_model(model), system, phase, batch, 70)


@functools.cache
def operations(name: str) -> dict[int, tuple[CoreOperation, ...]]:
    """Return the operations of every node of a set-up."""
    made = setting(name)
    routes = Routes(made, core_routing(made, "two_level"))
    layers = check_layers(made, SETTINGS[name][4].split(","))
    return {
        node: tuple(core_operations(made, node, 1, routes, layers))
        for node in range(made.system.nodes)
    }


def assert_sound(instructions: Instructions) -> None:
    """Assert that lines wait for earlier lines of their core, and that owners send."""
    lines, arguments, _ = instructions
    place: dict[int, int] = defaultdict(int)
    for line, argument in zip(lines, arguments, strict=True):
        core = int(line[CORE])
        assert 0 <= line[WAITS] <= line[BACK] <= place[core]
        place[core] += 1
        if line[OPCODE] == COPY:
            assert argument[0] == core != argument[1]
        assert (argument >= 0).all()
        first_size = {COPY: 2, MULTICAST: 1, BARRIER: 2, GEMM: 0, ADD: 0}.get(int(line[OPCODE]), 1)
        last_size = 2 if line[OPCODE] == MULTICAST else line[3]
        assert (argument[first_size:last_size] > 0).all()


def run_barriers(made: dict[int, tuple[CoreOperation, ...]]) -> int:
    """Let all cores run up to barriers, and those go on that all have come to; return barriers.

    Raises
    ------
    AssertionError
        Some wait for ever.
    """
    ahead: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for node in made.values():
        for operation in node:
            lines, arguments, _ = operation.instructions
            at = np.flatnonzero(lines[:, OPCODE] == BARRIER)
            for core, upper, lower in zip(
                lines[at, CORE].tolist(), *arguments[at, :2].T.tolist(), strict=True
            ):
                ahead[core].append((upper, lower))
    wanted: dict[tuple[int, int], list[int]] = defaultdict(list)
    for core, names in ahead.items():
        assert len(set(names)) == len(names), "a barrier is passed twice"
        for name in names:
            wanted[name].append(core)
    place = dict.fromkeys(ahead, 0)
    come: dict[tuple[int, int], int] = defaultdict(int)
    ready = list(ahead)
    passed = 0
    while ready:
        core = ready.pop()
        if place[core] == len(ahead[core]):
            continue
        name = ahead[core][place[core]]
        come[name] += 1
        if come[name] == len(wanted[name]):
            passed += 1
            for one in wanted[name]:
                place[one] += 1
            ready += wanted[name]
    assert passed == len(wanted), "cores wait for each other"
    return passed
