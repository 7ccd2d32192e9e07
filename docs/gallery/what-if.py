# %% [markdown]
# # What if
#
# A profile is numbers, and every number can be another one. What would a scale-out network of another speed bring, if each had the
# strategy that is best on it?

# %%
import numpy as np

from perfmodel import load_hardware, strategy_grid, sweep

base = load_hardware("dgx-h100")
path = "system.network.1.bandwidth"
speeds = np.array([12.5e9, 25e9, 50e9, 100e9, 200e9])
machines = [base.with_values({path: speed}) for speed in speeds]
grid = strategy_grid(
    "llama-3.1-70b",
    256,
    sequence_length=8192,
    global_batch_size=256,
    recompute="selective",
    context_parallel=1,
    micro_batch_size=1,
)
results = sweep("llama-3.1-70b", grid, machines, hardware_values={path: speeds})
fitting = results.step_time.where(results.fits)
chosen = fitting.argmin("strategy")
fitting.min("strategy").values.round(2)

# %% alt="Step time against the bandwidth of the network: the best of each, and the strategy that is best today"
import matplotlib.pyplot as plt

today = int(chosen[2])
figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
axes.semilogx(
    speeds / 1e9, fitting.min("strategy"), "o-", color="#0072B2", label="best strategy of each"
)
axes.semilogx(
    speeds / 1e9,
    fitting.isel(strategy=today),
    "o--",
    color="#D55E00",
    label="strategy that is best today",
)
axes.set(xlabel="network, GB/s per device and direction", ylabel="step [s]", xticks=speeds / 1e9)
axes.set_xticklabels([f"{speed / 1e9:g}" for speed in speeds])
axes.minorticks_off()
axes.set_ylim(0, None)
axes.legend()
plt.show()

# %% [markdown]
# On a quarter of the network whoever keeps today's strategy takes half as long again as who chooses anew. Which numbers of the machine matter at all? Each ten percent better, the
# same strategy:

# %% alt="Change of the step time when each of six numbers of the machine gets ten percent better"
paths = {
    "peak rate": "device.peak_flops.bf16",
    "power limit": "device.tdp",
    "memory bandwidth": "device.memory.bandwidth",
    "NVLink": "system.network.0.bandwidth",
    "network": "system.network.1.bandwidth",
}
better = [base.with_values({place: 1.1 * base.value(place)}) for place in paths.values()]
times = sweep("llama-3.1-70b", grid, [base, *better]).step_time.isel(strategy=today).values
gain = 100 * (1 - times[1:] / times[0])
figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
axes.barh(list(paths), gain, color="#1f4e5f")
axes.invert_yaxis()
axes.set_xlabel("shorter step [%]")
plt.show()

# %% [markdown]
# How far is any of this to be trusted? The published runs that come with perfmodel, projected:

# %%
from pathlib import Path

from perfmodel import compare_file

runs = Path("../../benchmarks/published_training_runs.csv")
errors = compare_file("training", runs).to_json_dict()
{key: round(errors[key], 3) for key in ("count", "median_absolute_error", "p90_absolute_error")}
