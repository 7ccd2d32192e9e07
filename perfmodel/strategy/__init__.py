"""What a user may choose for a run.

Fields, grids of them as columns, rules with a reason each, enumeration, the mapping of axes onto
network levels. No times.
"""
