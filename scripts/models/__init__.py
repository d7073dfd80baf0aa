"""The networks that the example programs train and run, in plain PyTorch."""
