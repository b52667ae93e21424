"""A built-in training: its data, its network, and the settings it is known to work with."""

from dataclasses import dataclass

from samestep.training.conduct import Conduct
from samestep.training.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One built-in training, by names and numbers alone; used where the user says nothing else."""

    name: str
    """What ``samestep train`` calls it."""
    data: str
    """The data set; see `samestep.data.registry`."""
    model: str
    """The network; see `samestep.models.registry`."""
    settings: Settings
    conduct: Conduct = Conduct()  # noqa: RUF009 - it is immutable
