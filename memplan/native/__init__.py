"""Compiled kernels; their sources lie beside them."""
