"""Recording: run a program unmodified and write down what it allocates."""
