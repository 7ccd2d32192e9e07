"""Matrix products, tile by tile."""
