# %% [markdown]
# # The landscape of strategies
#
# Every sensible way to train Llama-3.1-8B on 64 H100 is a point: how fast it is, and how much memory it takes. One sweep has them all.

# %%
from perfmodel import best, pareto, strategy_grid, sweep

grid = strategy_grid("llama-3.1-8b", 64, sequence_length=8192, global_batch_size=256)
results = sweep("llama-3.1-8b", grid, "dgx-h100")
dict(results.sizes)

# %% [markdown]
# Coloured by one axis, patterns show: tensor parallelism costs speed, and saves memory until recomputation saves more.

# %% alt="Tokens per second against memory of every strategy, coloured by tensor-parallel degree, with the Pareto front"
import matplotlib.pyplot as plt

table = results.isel(hardware=0)
memory = table.memory_total / 2**30
rate = table.tokens_per_second_per_device

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for degree, colour in zip((1, 2, 4, 8), ("#0072B2", "#E69F00", "#009E73", "#CC79A7")):
    chosen = table.tensor_parallel == degree
    axes.scatter(memory[chosen], rate[chosen], s=6, color=colour, alpha=0.6, label=f"tp {degree}")
front = pareto(results, ["step_time", "memory_total"])
axes.plot(
    [one["memory_total"] / 2**30 for one in front],
    [one["tokens_per_second_per_device"] for one in front],
    color="black",
    linewidth=1,
    label="not beaten",
)
axes.axvline(79.1, color="0.5", linestyle=":", label="capacity")
axes.set(xlim=(0, 160), xlabel="memory [GiB]", ylabel="tokens/s and device")
axes.legend(markerscale=3)
plt.show()

# %% [markdown]
# The front is short: a handful of strategies are all that anyone would choose from.

# %%
best(results, top=5)

# %% [markdown]
# How much does each choice matter? The best strategy with each value of an axis, relative to the best of all:

# %% alt="Best throughput with each value of five strategy axes, relative to the best of all"
fitting = rate.where(table.fits)
names = ["tensor_parallel", "context_parallel", "pipeline_parallel", "zero_stage", "recompute"]
figure, panels = plt.subplots(1, len(names), figsize=(10, 3), sharey=True, layout="constrained")
for panel, name in zip(panels, names):
    top = fitting.groupby(table[name]).max() / fitting.max()
    panel.bar([str(value) for value in top[name].values], 100 * top.values, color="#1f4e5f")
    panel.set_title(name, fontsize=9)
    panel.tick_params(axis="x", labelsize=8)
panels[0].set_ylabel("of the best [%]")
plt.show()
