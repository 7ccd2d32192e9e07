"""Measured runs beside projections.

Tables and their rows, kinds of tables (`kinds/`), errors by group, and calibration: the fit of a
profile's or a family's constants. No model of its own.
"""
