"""A ring of 16 devices, as ASTRA-sim's files say it."""

NETWORK = """\
topology: [ Ring ]
npus_count: [ 16 ]
bandwidth: [ 50.0 ]  # GB/s
latency: [ 500.0 ]  # ns
"""

SYSTEM = {
    "scheduling-policy": "LIFO",
    "endpoint-delay": 10,
    "active-chunks-per-dimension": 1,
    "preferred-dataset-splits": 1,
    "all-reduce-implementation": ["ring"],
    "all-gather-implementation": ["ring"],
    "reduce-scatter-implementation": ["ring"],
    "all-to-all-implementation": ["ring"],
    "collective-optimization": "localBWAware",
    "local-mem-bw": 1600,
}

ROOFLINE = {"roofline-enabled": 1, "peak-perf": 100}
