"""What a model does: lists of operations, each distinct shape priced once."""
