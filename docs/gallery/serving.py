# %% [markdown]
# # Serving trade-offs
#
# A served model has two customers: whoever pays for the devices, and whoever reads the answers. Every layout and load of Llama-3.1-8B with
# prompts of 2,048 tokens and answers of 256 is a point between them.

# %%
from perfmodel import serve

load = {
    "input_length": 2048,
    "output_length": 256,
    "concurrency": [1, 2, 4, 8, 16, 32, 64, 128, 256],
}
results = serve("llama-3.1-8b", {"tensor_parallel": [1, 2, 4, 8]}, load, ["dgx-h100", "dgx-h200"])
dict(results.sizes)

# %% alt="Output tokens per second and device against tokens per second and user, for four tensor-parallel degrees on two machines"
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
colours = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
for row, style in ((0, "-"), (1, "--")):
    for place, colour in enumerate(colours):
        line = results.isel(hardware=row, deployment=place)
        axes.plot(
            line.tokens_per_second_per_user,
            line.tokens_per_second_per_device,
            style,
            marker="o",
            ms=3,
            color=colour,
            label=f"tp {int(line.tensor_parallel)}, {line.hardware.values!s}",
        )
axes.set(xlabel="tokens/s and user", ylabel="output tokens/s and device")
axes.legend(fontsize=8, ncols=2)
plt.show()

# %% [markdown]
# Two more things decide: the first token, which waits for prompts of others, and where the time of a pass goes as the batch grows.

# %% alt="Time to first token and time per output token against concurrency on one H100"
line = results.isel(hardware=0, deployment=0)
figure, panels = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
panels[0].loglog(
    line.concurrency, line.time_to_first_token_mean, "o-", ms=4, color="#0072B2", label="mean"
)
panels[0].loglog(
    line.concurrency,
    line.time_to_first_token_p95,
    "o--",
    ms=4,
    color="#0072B2",
    label="95th percentile",
)
panels[0].set(title="time to first token [s]", xlabel="requests under way")
panels[0].legend()
panels[1].loglog(
    line.concurrency, 1e3 * line.time_per_output_token_mean, "o-", ms=4, color="#D55E00"
)
panels[1].set(title="time per output token [ms]", xlabel="requests under way")
for panel in panels:
    panel.grid(alpha=0.3)
plt.show()

# %% [markdown]
# And the other way round: the fewest devices that answer 20 requests per second within limits.

# %%
from perfmodel import size_deployment

size_deployment(
    "llama-3.1-8b",
    ["dgx-h100", "dgx-h200"],
    rate=20,
    limits={"ttft_p95": 1, "tpot_p95": 0.03},
    loads={"input_length": 2048, "output_length": 256},
)
