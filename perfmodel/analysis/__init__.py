"""Questions asked of results: where time goes, what it depends on, what it costs."""
