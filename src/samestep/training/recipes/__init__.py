"""The built-in trainings (recipes) and their configuration."""
