"""What AICB's CSV generators share: how an event is written, and how many may be."""

from __future__ import annotations

from functools import lru_cache

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.formats.aicb_tables import AicbEvent
from perfmodel.workloads.twins.aicb.arguments import AicbArguments

ELEMENT_SIZE = 2  # MockedParam's default, also of gradients in DeepSpeed [B]
LARGEST_FILE = 4_000_000  # rows: about 400 MB of text
ITERATION_END = AicbEvent("epoch_end")


@lru_cache(maxsize=4096)
def collective(
    kind: str, group: str, members: int | None, size: int, stage: str, source: int | None = None
) -> AicbEvent:
    """Return a collective; equal calls return one object, which is written faster.

    Parameters
    ----------
    kind, group : str
        Of `perfmodel.workloads.formats.aicb_tables.COMM_TYPES` and `COMM_GROUPS`.
    members : int or None
        Ranks of the group.
    size : int
        Whole buffer [B].
    stage : str
    source : int or None
        Root of a broadcast.
    """
    return AicbEvent(kind, group, members, size, stage, source=source)


def csv_file_name(arguments: AicbArguments, generator: str) -> str:
    """Return the name that AICB gives a CSV workload; it cuts the name at the first dot.

    `generator` is ``megatron`` or ``deepspeed_stage1`` to ``deepspeed_stage3``.
    """
    name = (
        f"{generator}_{arguments.model_name}_sp_{arguments.enable_sequence_parallel}"
        f"_iteration_{arguments.epoch_num}_computationEnable_{arguments.computes}"
        f"_{arguments.world_size}n"
    )
    return f"{name.rpartition('/')[2].partition('.')[0]}_workload.csv"


def check_rows(rows: int, arguments: AicbArguments) -> None:
    """Refuse files without bound.

    Raises
    ------
    StrategyError
        More than `LARGEST_FILE` rows.
    """
    if rows > LARGEST_FILE:
        raise StrategyError(
            f"up to {rows} rows from --num_layers={arguments.num_layers}, "
            f"{arguments.micro_batches} micro-batches and --epoch_num={arguments.epoch_num}; "
            f"at most {LARGEST_FILE} are written: take fewer, or larger buckets"
        )
