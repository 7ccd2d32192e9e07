"""Commands of this wing: where each is, imported when asked for, and its line of help."""

TITLE = "Project, choose and launch"
VERBS = {
    "sweep": ("sweep:sweep_command", "Project every sensible strategy."),
    "search": ("search:search_command", "Find the best of too many strategies."),
    "best": ("best:best_command", "Rank a sweep, or served models."),
    "project": ("project:project_command", "Project one strategy."),
    "explain": ("explain:explain_command", "Say where time and memory go, op by op."),
    "diff": ("diff:diff_command", "Compare two projections."),
    "sensitivity": ("sensitivity:sensitivity_command", "Say what a projection depends on."),
    "launch": ("launch:launch_command", "Write what starts a chosen strategy."),
    "serve": ("serve:serve_command", "Project a served model."),
    "size": ("size:size_command", "Find the fewest devices for a served rate."),
    "kernel": ("kernel:kernel_group", "Time single kernels."),
    "collective": ("collective:collective_command", "Time collectives."),
    "hardware": ("catalogue:hardware_group", "List and show hardware profiles."),
    "model": ("model:model_group", "List and show models."),
    "software": ("catalogue:software_group", "List and show frameworks and engines."),
    "samples": ("installation:samples_command", "Copy the documentation's sample files."),
    "doctor": ("installation:doctor_command", "Check this installation."),
    "completion": ("installation:completion_command", "Print a shell completion script."),
}
