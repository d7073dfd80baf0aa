"""Least-energy loop nests for convolutions (blocking CNNs, Yang et al. 2016)."""
