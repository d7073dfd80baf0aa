"""Applying a plan: the runtime loader and its report."""
