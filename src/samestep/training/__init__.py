"""The exact loop: batch plan, seeding, step, evaluation, run folder."""
