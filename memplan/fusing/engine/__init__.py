"""Nodes made to run: places in an arena, kernels chosen by time, a tape of calls."""
