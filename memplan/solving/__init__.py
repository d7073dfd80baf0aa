"""Ways to choose offsets, from the paper's best fit up."""
