"""Other programs' files, read: one format per module."""
