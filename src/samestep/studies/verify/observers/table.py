"""The table of observers.

A new observer needs its code in `verdict.NoteCode`, a row in ``docs/guide/verify.md``, a script with that
mistake in ``tests/gallery_notes``, and no note about any script without it.
"""

from collections.abc import Callable, Sequence

from samestep.studies.verify.observers.device_of_rank import DeviceOfRank
from samestep.studies.verify.observers.missing_gradients import MissingGradients
from samestep.studies.verify.observers.observer import Observer
from samestep.studies.verify.observers.rendezvous_address import RendezvousAddress

OF_ONE_WORKER: Sequence[Callable[[], Observer]] = (MissingGradients,)
"""Observers of the run on one worker."""
OF_EACH_RANK: Sequence[Callable[[], Observer]] = (
    DeviceOfRank,
    RendezvousAddress,
)
"""Observers of each rank of a distributed script that a launcher starts."""
