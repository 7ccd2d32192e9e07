"""Results to be looked at: a page, its local server, publication figures."""
