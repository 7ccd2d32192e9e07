"""Networks link by link: routes, loads, fair shares."""
