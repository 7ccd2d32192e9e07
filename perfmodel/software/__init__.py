"""What software does, declared as data with a source for each value.

`frameworks/*.toml` say what a training framework overlaps, fuses and keeps, `engines/*.toml` how an
engine serves; how kernel libraries cut their work stands in `compute`. What is fitted to
measurements stands in `hwprofiles`.
"""
