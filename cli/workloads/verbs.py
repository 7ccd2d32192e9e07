"""Commands of this wing: where each is, imported when asked for, and its line of help."""

TITLE = "Other tools' workload files, and networks link by link"
VERBS = {
    "topology": ("topology:topology_group", "Show, draw and export networks."),
    "workload": ("workload:workload_group", "Write, convert and describe workloads."),
    "simulate": ("simulate:simulate_command", "Run a workload on a network."),
}
