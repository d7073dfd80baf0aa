"""Models as programs of layers: traced, exported, or part by part."""
