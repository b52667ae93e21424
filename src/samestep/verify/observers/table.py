"""The tables of observers and checks.

A new check needs its code in `verdict.NoteCode`, a row in ``docs/guide/verify.md``, a training of a few lines
with that mistake in ``tests/unit/verify/observers``, and no note about any without it.
"""

from collections.abc import Callable, Sequence
from functools import partial

from samestep.verify.observers.check import Check, Checks, Observer
from samestep.verify.observers.evaluation import (
    DropoutInEvaluation,
    EvaluationModeKept,
    SpectralNormNotBegun,
    TrainingModeInEvaluation,
)
from samestep.verify.observers.gradient_coverage import GradientCoverage, UpdatesStop
from samestep.verify.observers.loaders import LoaderGenerators, RowsNotUsed, SamplerEpochs
from samestep.verify.observers.loss_graphs import LossArguments
from samestep.verify.observers.rank_observers import DeviceOfRank, RendezvousAddress, ThreadsOfRank
from samestep.verify.observers.saved_states import SavedStateDiffers
from samestep.verify.observers.step_order import GradientZeroing, LossScaling, ScheduleOrder

CHECKS: Sequence[Callable[[], Check]] = (
    GradientCoverage,
    GradientZeroing,
    EvaluationModeKept,
    TrainingModeInEvaluation,
    ScheduleOrder,
    LossScaling,
    LossArguments,
    LoaderGenerators,
    SamplerEpochs,
    RowsNotUsed,
    UpdatesStop,
    DropoutInEvaluation,
    SpectralNormNotBegun,
    SavedStateDiffers,
)
"""Checks of the run on one worker."""
OF_ONE_WORKER: Sequence[Callable[[], Observer]] = (partial(Checks, CHECKS),)
"""Observers of the run on one worker."""
CHECKS_OF_RANK: Sequence[Callable[[], Check]] = (EvaluationModeKept,)
"""Checks of each rank, as a rank can have a mode of its own: rank 0 alone calls ``model.train()``."""
OF_EACH_RANK: Sequence[Callable[[], Observer]] = (
    DeviceOfRank,
    ThreadsOfRank,
    RendezvousAddress,
    partial(Checks, CHECKS_OF_RANK),
)
"""Observers of each rank of a distributed script that a launcher starts."""
