"""Served models: passes, schedulers, queues."""
