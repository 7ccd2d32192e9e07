"""What was typed on the command line, apart from what is a default."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource


def typed_options() -> dict[str, Any]:
    """Return the options that were typed, by their names in Python, with their values."""
    context = click.get_current_context()
    return {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
