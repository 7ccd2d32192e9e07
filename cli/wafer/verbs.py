"""Commands of this wing: where each is, imported when asked for, and its line of help."""

TITLE = "Wafer-scale engines"
VERBS = {
    "wafer": ("group:wafer_group", "Project models on wafer-scale engines."),
}
VIEWS = {"wafer": "perfmodel.cli.wafer.output:Mappings"}
"""How the results of a command are called and shown, by command."""
SUBCOMMANDS = {
    "workload": ("workload:nodes_command", "workload:cores_command"),
    "plot": ("links:wafer_command",),
}
"""Commands that this wing adds to groups of others."""
