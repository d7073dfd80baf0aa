"""Memories: hierarchies and their files, energy by size, area."""
