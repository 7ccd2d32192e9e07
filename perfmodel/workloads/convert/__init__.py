"""Other tools' workload files as traces.

Found out by content, read with `formats`, converted, described; small synthetic traces too. Running
them is `simulation`, writing our own projections `export`.
"""
