"""What AICB takes from an AIOB computation file: times by the name of a row.

AICB applies one file to every shape: the times do not change with the model's sizes.
"""

from __future__ import annotations

from perfmodel.workloads.formats.aiob import AiobFile

NANOSECONDS = 1000  # per µs, the unit of the file
# Layers of DeepSeek's attention: timed apart where the file has a section for them, else 0,
# which AICB then takes for their time.
TIMED_APART = (
    "attention_linear_q_lora",
    "attention_q_column",
    "attention_linear_kv_lora",
    "attention_kv_column",
    "attention_o_row",
)
NO_TIME = 1  # [ns] where the file has nothing; AICB takes it for "not found", too


def training_times(aiob: AiobFile, recompute_activations: bool = False) -> dict[str, int]:
    """Return the times of a training file by AICB's own keys.

    Parameters
    ----------
    aiob : AiobFile
    recompute_activations : bool
        Counts flash attention twice, in the forward and in the backward pass.

    Returns
    -------
    dict of str to int
        Times [ns]: ``attention_forward`` … ``grad_backward``, every section that belongs to
        none of them, and the layers of `TIMED_APART`.

    Notes
    -----
    aicb 23eec3c4, utils/utils.py:373-440 (``extract_averages``): sums are rounded half to
    even, the backward pass takes as long as the forward pass, and of the optimizer's
    section ``param_time`` "forward" is the minimum and "backward" the average.
    """
    attention = mlp = 0.0
    gradient_forward = gradient_backward = 0
    others: dict[str, int] = {}
    apart = dict.fromkeys(TIMED_APART, 0)
    for name, time in aiob.sections.items():
        average = float(time.average) * NANOSECONDS
        if name == "param_time":
            gradient_forward = round(float(time.minimum) * NANOSECONDS)
            gradient_backward = round(average)
            continue
        if "atten" in name or name == "layernorm":
            attention += average * 2 if recompute_activations and "flash" in name else average
        elif "mlp" in name or name == "layernorm2":
            mlp += average
        else:
            others[name] = round(average)
        if name in apart:
            apart[name] = round(average)
    return {
        "attention_forward": round(attention),
        "attention_backward": round(attention),
        "mlp_forward": round(mlp),
        "mlp_backward": round(mlp),
        "grad_forward": gradient_forward,
        "grad_backward": gradient_backward,
        **others,
        **apart,
    }


def time_of(times: dict[str, int], stage: str, direction: str = "") -> int:
    """Return the time of a stage as AICB looks it up, `NO_TIME` where there is none.

    Source: ``_get_aiob_compute_time``, lines 56-83 of the training generator. The LM head
    ("final") takes attention's time, never the measured ``logit_time``.
    """
    if stage in times:
        return times[stage]
    if stage == "embedding":
        key = "Emb"
    elif stage == "final":
        key = f"attention_{direction}"
    else:
        key = f"{stage}_{direction}"
    return times.get(key, NO_TIME)
