"""What a trace says: which line, which category, a leak, more than before."""
