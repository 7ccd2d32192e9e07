"""Results kept: files, blocks, journals, earlier versions."""
