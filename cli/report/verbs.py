"""Commands of this wing: where each is, imported when asked for, and its line of help."""

TITLE = "Look at results"
VERBS = {
    "timeline": ("timeline:timeline_command", "Write a step or a served model in time."),
    "report": ("report:report_command", "Show results as one page."),
    "plot": ("plot:plot_group", "Draw figures of results and workloads."),
    "ui": ("report:ui_command", "Open a page with controls."),
}
