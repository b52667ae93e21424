"""Defines and checks the settings and options of a training."""
