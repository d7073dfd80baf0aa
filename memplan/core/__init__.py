"""The nouns everything else speaks of: Problem, Plan, bounds, verification."""
