"""Recurrent mixers: chunked scans and state updates of linear attention and state-space models."""
