"""PyTorch's traces: host side, device side (Kineto), collectives in them."""
