"""perfmodel wafer: a model on a mesh of cores, one mapping or a grid of them."""
