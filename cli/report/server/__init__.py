"""The report as a local application."""
