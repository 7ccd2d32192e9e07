"""Timelines: what runs when in a step, a pipeline or a served model."""
