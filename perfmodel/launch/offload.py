"""What launch files leave to the host, in the words of their software."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from perfmodel.base.errors import StrategyError
from perfmodel.launch.settings import Keys, Settings
from perfmodel.software.offload import INPUTS, offloaded_inputs
from perfmodel.strategy.fields import OFFLOAD_TO


class Switch(NamedTuple):
    """A key that leaves something to the host.

    Attributes
    ----------
    key : str
    fields : tuple of str
        Of the strategy: all of it, or the share that another key states.
    share : str
        That key; empty for all.
    """

    key: str
    fields: tuple[str, ...]
    share: str = ""


def read_offload(settings: Settings, switches: Iterable[Switch]) -> Keys:
    """Return the shares that keys leave to the host; empty where they leave nothing.

    Raises
    ------
    FormatError
        A share above 1.
    """
    found: Keys = {}
    for switch in switches:
        value = settings.stated(switch.key, flag=True)
        share = settings.number(switch.share, 1.0) if switch.share else 1.0
        if share > 1.0:
            raise settings.wrong(switch.share, "a share of at most 1")
        if value is None:
            continue
        found |= dict.fromkeys(switch.fields, share)
        if value == "nvme":
            found |= {OFFLOAD_TO[name]: value for name in switch.fields}
    return found


def read_activations(
    settings: Settings, spelled: Callable[[str], str], layers: int
) -> tuple[Keys, Keys]:
    """Return what Megatron-Core leaves to the host of activations: strategy and facts.

    Parameters
    ----------
    settings : Settings
    spelled : callable
        How the software spells a field of ``TransformerConfig``.
    layers : int
        Of the model; 0 where nobody says.

    Raises
    ------
    FormatError
        A module that is none, or more layers than there are.
    """
    switch, key = spelled("fine_grained_activation_offloading"), spelled("offload_modules")
    if settings.flag(switch):
        settings.read.add(key)
        value = settings.entries[key].value if key in settings.entries else ""
        words = " ".join(re.findall(r"\w+", str(value)))
        try:
            offloaded_inputs(words)
        except StrategyError:
            one = "; fused_group_mlp without expert_fc1 and moe_act"
            raise settings.wrong(key, f"modules of {', '.join(INPUTS)}{one}") from None
        if words:
            share = settings.number(spelled("activation_offload_fraction"), 1.0)
            return {"offload_activations": share}, {"offload_modules": words}
    key = spelled("cpu_offloading_num_layers")
    count = settings.whole(key, 0, minimum=0)
    if not count:
        return {}, {}
    if not layers:
        settings.remark(f"{settings.name(key)}: say it with --offload-activations: the share")
        return {}, {}
    if count > layers:
        raise settings.wrong(key, f"at most the {layers} layers of the model")
    return {"offload_activations": count / layers}, {}
