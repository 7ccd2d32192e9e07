"""Measured runs beside projections: rows, kinds of tables, errors, calibration."""
