"""What a training step computes again so that its memory fits a budget."""
