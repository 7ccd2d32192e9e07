"""What launches a training framework: argument lists and configuration files, written and read.

`describe` holds what all have in common, `settings` how tables of keys are written and read,
`software` the programs by name; one module per program holds its tables, and what it cannot do.
"""
