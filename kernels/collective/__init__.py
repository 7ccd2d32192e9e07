"""Times of collectives in closed form."""
