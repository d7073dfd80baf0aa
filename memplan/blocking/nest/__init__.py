"""Loop nests: layers, strings of loops, and what each loop makes pass."""
