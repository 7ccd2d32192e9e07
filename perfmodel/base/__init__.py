"""What every room rests on.

Errors, units, number formats, names of collectives, types of columns, files and figures,
filters over columns, names of result variables, the fields that a user may choose. No model, no
profile, no formula of a time.
"""
