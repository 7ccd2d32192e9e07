"""Chakra execution traces, as protobuf and as JSON."""
