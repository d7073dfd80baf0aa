"""How a slice of an operator's result follows from slices of its operands.

One file a family of operators; `memplan.chunking.rules.table.RULES` has them all.
"""
