"""What launch files leave to the host's memory, in the words of their software."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from perfmodel.formats.launch.settings import Keys, Settings


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
        if value == "nvme":
            name = settings.name(switch.key)
            settings.remark(f"{name}: nvme is projected as the host's memory")
        found |= dict.fromkeys(switch.fields, share)
    return found
