"""Commands of the measured wing."""
