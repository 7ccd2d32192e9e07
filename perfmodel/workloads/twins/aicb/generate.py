"""One entry to all of AICB's generators."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from perfmodel.workloads.formats.aiob import AiobFile
from perfmodel.workloads.twins.aicb.arguments import AicbArguments

# Value of `arguments.GENERATORS`: module, function, and whether it takes computation times.
WRITERS = {
    "training": ("training", "training_text", True),
    "deepspeed": ("deepspeed", "deepspeed_csv", False),
    "megatron_csv": ("megatron_csv", "megatron_csv", False),
    "inference": ("inference", "inference_text", True),
    "vidur": ("vidur", "vidur_csv", True),
}


def generate(arguments: AicbArguments, computation: AiobFile | None = None) -> str:
    """Return the text of the file that AICB writes for its arguments.

    Parameters
    ----------
    arguments : AicbArguments
        Their ``generator`` says which file: SimAI's text for training or inference, the CSV
        of Megatron or DeepSpeed, or Vidur's.
    computation : AiobFile, optional
        Computation times, for the generators that use them.

    Raises
    ------
    StrategyError
        Arguments that the generator refuses.
    """
    module, function, timed = WRITERS[arguments.generator]
    write = _found(module, function)
    return write(arguments, computation) if timed else write(arguments)


def file_name(arguments: AicbArguments) -> str:
    """Return the name that AICB gives the file, without its folder.

    Raises
    ------
    StrategyError
        Arguments that the generator refuses.
    """
    module, _, _ = WRITERS[arguments.generator]
    return _found(module, "file_name")(arguments)


def _found(module: str, function: str) -> Callable[..., str]:
    """Return a function of a generator, whose module is only loaded now."""
    found: Callable[..., str] = getattr(
        importlib.import_module(f"perfmodel.workloads.twins.aicb.{module}"), function
    )
    return found
