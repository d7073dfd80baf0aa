"""Stacks as CUDA kernels: written, compiled through NVRTC, and launched."""
