"""What a user may choose for a run.

Grids of fields (`base.strategy_fields`) as columns, rules with a reason each, enumeration, the
mapping of axes onto network levels. No times.
"""
