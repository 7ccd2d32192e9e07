"""Strategies x hardware as one labelled dataset: stored, reopened, ranked, explained."""
