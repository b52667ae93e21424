"""The built-in training loop: settings, step, evaluation, checkpoint schedule, run folder."""
