"""What the benchmarks share: the programs, measured child processes, and ratios."""
