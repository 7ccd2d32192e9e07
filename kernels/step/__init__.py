"""The fused pass that closes every strategy."""
