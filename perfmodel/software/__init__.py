"""Facts of software as data, with a source each: training frameworks and kernel libraries.

What software does on its own account stands here; what was fitted to measurements stands in the
hardware profiles, and how a time follows from both in the rooms above.
"""
