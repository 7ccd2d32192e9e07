# %% [markdown]
# # Where the time goes
#
# The components of a step add up to it. Here are four ways to train Llama-3.1-70B on 256 H100, and what each spends its time on.

# %%
from perfmodel import project

ways = {
    "ZeRO-3": dict(zero_stage=3, recompute="full"),
    "tp 8": dict(tensor_parallel=8, zero_stage=1, recompute="full"),
    "tp 4 · pp 4": dict(tensor_parallel=4, pipeline_parallel=4, recompute="selective"),
    "tp 4 · pp 4 · vpp 5": dict(
        tensor_parallel=4, pipeline_parallel=4, virtual_pipeline=5, recompute="selective"
    ),
}
steps = {
    name: project(
        "llama-3.1-70b", "dgx-h100", 256, sequence_length=8192, global_batch_size=512, **way
    )
    for name, way in ways.items()
}
{name: round(float(step["step_time"]), 2) for name, step in steps.items()}

# %% alt="Stacked bars of the components of a step for four strategies"
import matplotlib.pyplot as plt

parts = {
    "forward": ("forward_time", "#0072B2"),
    "backward": ("backward_time", "#56B4E9"),
    "recomputation": ("recompute_time", "#009E73"),
    "tensor parallel": ("tensor_parallel_exposed", "#E69F00"),
    "pipeline sends": ("pipeline_exposed", "#F0E442"),
    "bubble": ("pipeline_bubble", "#999999"),
    "data parallel": ("data_parallel_exposed", "#D55E00"),
    "optimizer, host": ("optimizer_time", "#CC79A7"),
}
figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
left = dict.fromkeys(steps, 0.0)
for label, (name, colour) in parts.items():
    widths = [
        float(step[name]) + (float(step["host_time"]) if name == "optimizer_time" else 0.0)
        for step in steps.values()
    ]
    axes.barh(list(steps), widths, left=list(left.values()), color=colour, label=label)
    left = {key: value + width for (key, value), width in zip(left.items(), widths)}
axes.invert_yaxis()
axes.set_xlabel("time of a step [s]")
axes.legend(fontsize=8, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
plt.show()

# %% [markdown]
# Bars end where the step does: nothing is left out.

# %%
{name: abs(left[name] / float(step["step_time"]) - 1) < 1e-9 for name, step in steps.items()}

# %% [markdown]
# One level deeper are operations. `explain` lists them; the longest of the first way:

# %%
from perfmodel import explain

operations = explain(
    "llama-3.1-70b",
    "dgx-h100",
    256,
    sequence_length=8192,
    global_batch_size=512,
    zero_stage=3,
    recompute="full",
).to_dataframe()
columns = ["name", "phase", "shape", "calls", "exposed", "bound"]
operations.nlargest(8, "exposed")[columns].reset_index(drop=True).round(3)
