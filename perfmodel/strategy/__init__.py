"""What a user may choose: fields, grids of them, rules, enumeration, mapping onto levels."""
