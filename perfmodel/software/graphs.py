"""What captured graphs hold, from the words of Megatron's options."""

from __future__ import annotations

from typing import Any

# Word of Megatron-Core's ``cuda_graph_scope`` -> part of the fact `graph_scope`.
PARTS = (("attn", "attention"), ("router", "router"))

NO_GRAPHS = {"graph_launch": False, "graph_scope": "none", "layer_graphs": False}


def graph_facts(scope: str) -> dict[str, Any]:
    """Return the facts of a framework whose graphs are captured with a scope.

    Parameters
    ----------
    scope : str
        Words of ``cuda_graph_scope``: ``attn``, ``moe_router``, ``moe_preprocess``, ``full``,
        ``full_iteration``; empty holds whole layers.
    """
    parts = [part for word, part in PARTS if word in scope]
    whole = not scope.strip("[]'\" ") or "full" in scope
    return {
        "graph_launch": whole,
        "graph_scope": "_".join(parts) if parts and not whole else "none",
        "layer_graphs": whole and "full_iteration" not in scope,
    }
