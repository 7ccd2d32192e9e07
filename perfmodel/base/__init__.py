"""What every room rests on.

Errors, units, number formats, names of collectives, types of columns, files and figures,
filters over columns, names of result variables. No model, no profile, no formula of a time.
"""
