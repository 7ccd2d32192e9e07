"""Commands of this wing: where each is, imported when asked for, and its line of help."""

TITLE = "Hold against measured runs"
VERBS = {
    "compare": ("compare:compare_command", "Compare projections with measured runs."),
    "calibrate": ("calibrate:calibrate_command", "Fit a profile to measured kernels."),
}
