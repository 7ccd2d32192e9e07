"""One kind of measured table each."""
