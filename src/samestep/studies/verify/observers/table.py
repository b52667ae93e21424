"""The table of observers.

A new observer needs its code in `verdict.NoteCode`, a row in ``docs/guide/verify.md``, a script with that
mistake in ``tests/gallery_notes``, and no note about any script without it.
"""

from collections.abc import Callable, Sequence

from samestep.studies.verify.observers.missing_gradients import MissingGradients
from samestep.studies.verify.observers.observer import Observer

OF_ONE_WORKER: Sequence[Callable[[], Observer]] = (MissingGradients,)
"""Observers of the run on one worker."""
