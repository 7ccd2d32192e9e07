"""Systems as text of a ``system.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping

from perfmodel.wafer.generator_files import KEYS, WORKLOADS
from perfmodel.wafer.system import WaferSystem


def system_text(systems: Mapping[str, WaferSystem]) -> str:
    """The file of systems whose routing has a name there."""
    names = {routing: name for name, routing in WORKLOADS.items()}
    return json.dumps(
        {
            phase: {key: getattr(system, field) for key, field in KEYS.items()}
            | {"expert_workload_model": names[system.routing]}
            for phase, system in systems.items()
        }
    )
