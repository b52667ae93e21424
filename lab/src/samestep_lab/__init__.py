"""The lab of samestep: experiments, graded exercises, collectives to read, and checks of collectives."""

__version__ = "0.1.0"
