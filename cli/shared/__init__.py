"""What commands share: options, parsing, printing, tables."""
