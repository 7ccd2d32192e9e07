"""Closes the operations as a training step: schedule, memory, projection of a grid."""
