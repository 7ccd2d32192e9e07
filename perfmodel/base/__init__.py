"""What every room rests on: errors, units, files, figures, words of columns."""
