"""Nests made to run: simulated caches, C++, layouts; layers of PyTorch models."""
