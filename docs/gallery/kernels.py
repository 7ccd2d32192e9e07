# %% [markdown]
# # Kernels on the roof line
#
# Matrix products, attention and streams have a model each, tile by tile. Here they are beside the roof line of an H100: what its peak
# rate and its memory's bandwidth allow at most.

# %%
import numpy as np

from perfmodel import gemm_times, load_hardware

hardware = load_hardware("dgx-h100")
peak = hardware.device.peak_flops["bf16"]
bandwidth = hardware.device.memory.bandwidth
peak / 1e12, bandwidth / 1e12  # TFLOP/s and TB/s

# %% alt="Achieved rate of matrix products of growing size, below the roof line of an H100"
import matplotlib.pyplot as plt

rows = 2.0 ** np.arange(0, 15)
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for side, colour in ((2048, "#E69F00"), (4096, "#009E73"), (8192, "#0072B2")):
    found = gemm_times(hardware, "bf16", m=rows, n=side, k=side)
    flops = 2 * rows * side * side
    intensity = flops / (2 * (2 * rows * side + side * side))
    axes.loglog(
        intensity, flops / found.time / 1e12, "o-", ms=4, color=colour, label=f"m × {side} × {side}"
    )
reach = np.geomspace(0.5, 5000, 100)
axes.loglog(reach, np.minimum(peak, bandwidth * reach) / 1e12, color="black", label="roof line")
axes.set(xlabel="FLOP per byte of the operands", ylabel="TFLOP/s", ylim=(0.3, 2000))
axes.legend()
plt.show()

# %% [markdown]
# Small products wait for their launch and the memory; large ones reach four fifths of the peak, where the board's power ends it. A product
# takes a jump where its tiles begin one more wave:

# %% alt="Achieved rate of products against m, with steps where another wave of tiles begins"
m = np.arange(128, 8193, 64.0)
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
found = gemm_times(hardware, "bf16", m=m, n=4096, k=4096)
axes.plot(m, 2 * m * 4096**2 / found.time / 1e12, color="#1f4e5f")
axes.set(xlabel="m (n = k = 4,096)", ylabel="TFLOP/s")
plt.show()

# %% [markdown]
# Collectives change their algorithm and protocol where the library's own table says so, which leaves kinks in their curves.

# %% alt="Bus bandwidth of all-reduces over 8, 16 and 64 H100 against their size"
from perfmodel import collective_times

sizes = 2.0 ** np.arange(10, 34)
figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
for members, colour in ((8, "#0072B2"), (16, "#E69F00"), (64, "#009E73")):
    time = collective_times(hardware, "all_reduce", sizes, members=members)
    carried = 2 * (members - 1) / members * sizes / time
    axes.semilogx(sizes, carried / 1e9, "o-", ms=3, color=colour, label=f"{members} devices")
axes.set(xlabel="buffer [B]", ylabel="bus bandwidth [GB/s]")
axes.legend()
plt.show()
