"""Which operators run in chunks so that a model's activations fit a budget.

AutoChunk (Zhao et al., ICLR 2024). rules: how slices flow through operators; regions
are made of them, searched, timed, and written as Python.
"""
