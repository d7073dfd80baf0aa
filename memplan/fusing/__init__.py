"""Layers run depth-first: stacks found, collapsed, generated, built and run."""
