"""Declared behaviour of software: what a training framework overlaps, fuses and keeps."""
