"""Facts of Megatron-Core's software that options set in several words: graphs, capacities."""

from __future__ import annotations

from collections.abc import Callable

from perfmodel.launch.settings import Keys, Settings
from perfmodel.software.graphs import graph_facts


def core_software(settings: Settings, spelled: Callable[[str], str]) -> Keys:
    """Return the facts of the framework that a run's options set.

    Parameters
    ----------
    settings : Settings
    spelled : callable
        How the software spells a field of ``TransformerConfig``.

    Raises
    ------
    FormatError
        A capacity is no positive number.
    """
    facts: Keys = {}
    captured = settings.word(spelled("cuda_graph_impl"), "none")
    # Options of Megatron-Core before 0.14.
    for older in ("enable_cuda_graph", "external_cuda_graph"):
        if settings.flag(spelled(older)):
            captured = older
    scope = settings.word(spelled("cuda_graph_scope"))
    if captured != "none":
        facts |= graph_facts(captured if captured == "full_iteration" else scope)
    if settings.flag(spelled("moe_pad_expert_input_to_capacity")):
        facts["capacity_factor"] = settings.number(spelled("moe_expert_capacity_factor"), 1.0)
    return facts
