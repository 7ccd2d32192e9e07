"""What every node of a wafer computes, reads, writes, sends and receives, by operation."""
