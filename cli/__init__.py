"""Command line: parses, calls and prints."""
