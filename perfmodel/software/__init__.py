"""What software does, declared as data with a source for each value.

`frameworks/*.toml` say what a training framework overlaps, fuses and keeps, `libraries/*.toml` how
kernel libraries cut their work. What is fitted to measurements stands in `hwprofiles`.
"""
