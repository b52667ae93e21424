"""The built-in training of samestep: data, models, recipes, loop, checkpoints."""
