"""Commands of the report wing."""
