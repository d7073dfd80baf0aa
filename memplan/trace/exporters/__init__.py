"""Files for other programs, written: one format per module."""
