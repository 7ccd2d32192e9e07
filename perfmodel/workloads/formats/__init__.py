"""Readers and writers of other tools' workload files, nothing else.

`read_x` and `write_x` take paths, `parse_x` and `format_x` text, on `perfmodel.base.files`: bounded
reads, errors with file and line, atomic writes. What the files mean is `convert` and `export`.
"""
