"""Networks, sweeps and memories: many layers, budgets, cores."""
