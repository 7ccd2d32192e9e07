"""What launches a training framework: argument lists and configuration files, written and read.

`describe` holds what all have in common, `settings` how tables of keys are written and read,
`software` the programs by name; one module per program holds its tables, and what it cannot do.
"""

from __future__ import annotations

from collections.abc import Mapping

MODULES: Mapping[str, str] = {
    "megatron": "megatron",
    "megatron-bridge": "megatron_bridge",
    "torchtitan": "torchtitan",
    "maxtext": "maxtext",
    "deepspeed": "deepspeed",
    "primus": "primus",
}
"""Name on the command line -> module of this package."""
