"""Exercises: their starter files, their solutions, and the grading of what a learner wrote."""
