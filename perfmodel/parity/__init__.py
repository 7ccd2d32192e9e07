"""Twins of other tools, oddities included; nothing below imports them."""
