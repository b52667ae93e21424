"""The built-in trainings."""
