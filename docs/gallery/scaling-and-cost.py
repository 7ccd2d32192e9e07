# %% [markdown]
# # Scaling and cost
#
# From 64 to 2,048 devices of two machines: how the best strategy of each scales, what a training on a trillion tokens takes, and what it
# costs at made-up prices of a device and hour.

# %%
from perfmodel import add_cost, scaling, sweep_several

devices = [64, 128, 256, 512, 1024, 2048]
results = sweep_several(
    "llama-3.1-8b",
    ["dgx-h100", "dgx-b200"],
    devices,
    sequence_length=8192,
    global_batch_size=1024,
    context_parallel=1,
    micro_batch_size=[1, 2],
    recompute="selective",
)
results = add_cost(results, tokens=1e12, price={"dgx-h100": 2.5, "dgx-b200": 4.0}, goodput=True)
curves = scaling(results)
len(curves)

# %% alt="Efficiency, days and cost of a training on a trillion tokens against the number of devices, for two machines"
import matplotlib.pyplot as plt

figure, panels = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
for machine, colour in (("dgx-h100", "#0072B2"), ("dgx-b200", "#D55E00")):
    rows = [row for row in curves if row["hardware"] == machine]
    count = [row["devices"] for row in rows]
    style = dict(marker="o", ms=4, color=colour, label=machine)
    panels[0].semilogx(count, [100 * row["scaling_efficiency"] for row in rows], base=2, **style)
    panels[1].loglog(count, [row["training_time"] / 86400 for row in rows], base=2, **style)
    panels[2].semilogx(count, [row["training_cost"] / 1e3 for row in rows], base=2, **style)
for panel, title in zip(panels, ("efficiency [%]", "time [days]", "cost [1,000 USD]")):
    panel.set(title=title, xlabel="devices", xticks=devices, xticklabels=devices)
    panel.tick_params(labelsize=8)
    panel.grid(alpha=0.3)
panels[0].set_ylim(0, 105)
panels[1].set(yticks=[0.5, 1, 2, 4, 8, 16], yticklabels=[0.5, 1, 2, 4, 8, 16])
panels[2].set_ylim(0, None)
panels[0].legend()
plt.show()

# %% [markdown]
# The batch stays the same, so each of many devices has less to do between two reductions of the gradients, and efficiency falls. The
# strategy changes on the way:

# %%
{
    (
        row["hardware"],
        row["devices"],
    ): f"tp {row['tensor_parallel']} · pp {row['pipeline_parallel']} · zero {row['zero_stage']}"
    for row in curves
}
