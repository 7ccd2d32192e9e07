"""A network link by link: axes, distances, cuts, loads of links."""
