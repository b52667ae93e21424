"""A built-in training: its data, its network, and the settings it is known to work with."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from samestep.data.image_set import ImageSet
from samestep.training.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One built-in training."""

    name: str
    """What ``samestep train`` calls it, and the name of its data set."""
    model: Callable[[ImageSet], nn.Module]
    """Returns an untrained network for images like these."""
    settings: Settings
    """Used where the user says nothing else."""
