"""Compares the measured scaling modes of a study with the requested ones."""

from collections.abc import Iterator, Sequence

from samestep.studies.scaling.analysis.notes import note
from samestep.studies.scaling.analysis.point_text import amount
from samestep.studies.scaling.analysis.study import Finding, Point
from samestep.studies.scaling.sweep.plan import Request
from samestep.studies.scaling.sweep.trial import Trial

_MEANING = {"strong": "the global batch is constant", "weak": "the batch of each worker is constant"}


def mode_notes(request: Request, trials: Sequence[Trial], points: Sequence[Point]) -> Iterator[Finding]:
    """Yield notes on modes that were requested with ``--scaling`` but not measured.

    Args:
        request: of the study.
        trials: the runs that have a result.
        points: of the study.
    """
    smallest = min((point.workers for point in points), default=0)
    measured = {(point.workers, point.variant, point.mode): point for point in points}
    requested = {
        (trial.workers, trial.variant, mode)
        for trial in trials
        for mode in trial.modes
        if trial.workers > smallest
    }
    for mode, meaning in _MEANING.items():
        missing = sorted(one for one in requested if one[2] == mode and one not in measured)
        if not missing:
            continue
        (workers, variant, _) = missing[0]
        others = [point for point in points if (point.workers, point.variant) == (workers, variant)]
        base = min((one for one in points if one.variant == variant), key=lambda one: one.workers)
        batches = _batches([base, *others])
        found = others[0].mode if others else "neither"
        if request.scaling != "auto":
            words = (
                f"{mode.capitalize()} scaling was requested, in which {meaning}. The measured global batch "
                f"was {batches}, so the mode of these points is {found}."
            )
            yield note("other-mode", words, workers=[base.workers, workers])
        if mode == "strong" and others and others[0].mode == "weak" and request.kind != "recipe":
            words = f"For strong scaling, give the batch of each worker as {{{base.global_batch:.0f}/n}}."
            yield note("strong-template", words)


def _batches(points: Sequence[Point]) -> str:
    """Return the measured batches in words."""
    sizes = {point.workers: point.global_batch for point in points if point.global_batch}
    return ", ".join(f"{amount(batch)} on {workers}" for workers, batch in sizes.items())
