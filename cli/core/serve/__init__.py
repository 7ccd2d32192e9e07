"""perfmodel serve: served models, one point or a grid of them."""
