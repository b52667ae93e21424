"""Defines a recipe: a data set, a network and settings that are tested together."""

from dataclasses import dataclass

from samestep.training.conduct import RunOptions
from samestep.training.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One built-in training; flags and configuration files override its settings."""

    name: str
    """Its name for ``samestep train``."""
    data: str
    """The data set; see `samestep.data.registry`."""
    model: str
    """The network; see `samestep.models.registry`."""
    settings: Settings
    options: RunOptions = RunOptions()  # noqa: RUF009 - it is immutable
