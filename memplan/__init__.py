"""Record what a PyTorch program allocates, plan that memory, apply the plan."""

__version__ = "0.1.0"
