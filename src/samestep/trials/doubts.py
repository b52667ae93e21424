"""Where what was seen is not what was asked for."""

from collections.abc import Iterator, Sequence

from samestep.scaling.study import Point
from samestep.scaling.words import amount
from samestep.trials.plan import Request
from samestep.trials.trial import Trial

_MEANING = {"strong": "the global batch stays", "weak": "each worker's batch stays"}


def doubts(request: Request, trials: Sequence[Trial], points: Sequence[Point]) -> Iterator[str]:
    """Yield which mode was asked for and not seen; a script is not asked unless somebody says ``--scaling``.

    Args:
        request: what was asked for.
        trials: those that gave something.
        points: of the study.
    """
    smallest = min((point.workers for point in points), default=0)
    seen = {(point.workers, point.variant, point.mode): point for point in points}
    asked = {
        (trial.workers, trial.variant, mode)
        for trial in trials
        for mode in trial.modes
        if trial.workers > smallest
    }
    for mode, meaning in _MEANING.items():
        missing = sorted(one for one in asked if one[2] == mode and one not in seen)
        if not missing:
            continue
        (workers, variant, _) = missing[0]
        others = [point for point in points if (point.workers, point.variant) == (workers, variant)]
        base = min((one for one in points if one.variant == variant), key=lambda one: one.workers)
        batches = _batches([base, *others])
        found = f"{others[0].mode} scaling" if others and others[0].mode != "neither" else "neither"
        if request.scaling != "auto":
            yield (
                f"Asked for was {mode} scaling, in which {meaning}; seen was {batches}, and these points are "
                f"filed under what was seen: {found}."
            )
        if mode == "strong" and others and others[0].mode == "weak" and request.kind != "recipe":
            yield f"For strong scaling, give the batch of each worker as {{{base.global_batch:.0f}/n}}."


def _batches(points: Sequence[Point]) -> str:
    """Return the batches that were seen, in words."""
    seen = {point.workers: point.global_batch for point in points if point.global_batch}
    return "a global batch of " + ", ".join(
        f"{amount(batch)} on {workers}" for workers, batch in seen.items()
    )
