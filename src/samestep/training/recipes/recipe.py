"""Defines a recipe: a data set, a network and settings that are tested together."""

from dataclasses import dataclass

from samestep.training.settings.run_options import RunOptions
from samestep.training.settings.training_settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One built-in training; flags and configuration files override its settings."""

    name: str
    """Its name for ``samestep train``."""
    data: str
    """The data set; see `samestep.training.data.sets.registry`."""
    model: str
    """The network; see `samestep.training.models.registry`."""
    settings: Settings
    options: RunOptions = RunOptions()  # noqa: RUF009 - it is immutable
