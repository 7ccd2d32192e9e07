"""Why a run of a text workload ends early, in words."""

from __future__ import annotations

from perfmodel.workloads.formats.astra_text import AstraTextWorkload

PHASES = ("forward", "input-gradient", "weight-gradient")


def reason_to_stop(
    workload: AstraTextWorkload, status: int, layer: int, phase: int, splits: int, size: int
) -> str:
    """Return what is wrong, where, and what would be right.

    Parameters
    ----------
    workload : AstraTextWorkload
    status : int
        As `perfmodel.kernels.workloads.astra_text.state` numbers the ends of a run.
    layer, phase : int
        Where it happened.
    splits : int
        Preferred chunks of the system.
    size : int
        Of the layer's collective, scaled [B].
    """
    from perfmodel.kernels.workloads.astra_text import state as ends

    where = f"layer {layer} ({workload.names[layer]})"
    own = workload.phases[phase]
    collective = f"{where}: the {PHASES[phase]} collective {own.collective[layer]}"
    reasons = {
        ends.EMPTY: f"{collective} has 0 bytes and would never end in ASTRA-sim 1.0; it should "
        "be NONE or have bytes",
        ends.NO_CHUNK: f"{collective} has fewer bytes ({size}) than "
        f"preferred-dataset-splits {splits}: ASTRA-sim 1.0 would cut chunks of 0 bytes for ever",
        ends.TOO_LARGE: f"{collective} has chunks of more than 2^31 - 1 bytes, which ASTRA-sim "
        "1.0 counts in 32 bits; preferred-dataset-splits should be larger",
        ends.PANIC: f"{collective}: ASTRA-sim 1.0 reads this collective and stops where it should "
        "run it ('no known collective operation')",
        ends.NO_CHECKPOINT: f"{where} initiates a forward pass, but neither it nor any layer "
        "before it is a checkpoint; ASTRA-sim 1.0 would read before its list of layers",
        ends.PAST_THE_END: f"the forward pass within the backward pass runs past {where}, the "
        "last one: no layer behind the checkpoint initiates another; ASTRA-sim 1.0 would read "
        "behind its list of layers",
        ends.UNEQUAL_STATUS: f"{collective} runs on half of a dimension, whose devices do not "
        "keep step at messages this small; ASTRA-sim 1.0 stops there ('Same key entry already "
        "exist')",
        ends.TOO_LONG_STATUS: f"{collective} has a message of more than 2^31 - 1 ns, which "
        "ASTRA-sim 1.0 counts in 32 bits",
        ends.TOO_LATE: "times beyond 2^52 ns cannot be counted; bandwidth, latency or a size is "
        "out of range",
        ends.STUCK: "nothing is left to do, but not all collectives have ended",
    }
    return reasons[status]
