"""From points to a study: related, with their losses, fits, verdict and notes."""

from dataclasses import replace

from samestep.scaling.fit import fits
from samestep.scaling.losses import with_losses
from samestep.scaling.notes import notes
from samestep.scaling.relate import relate
from samestep.scaling.study import Study
from samestep.scaling.verdict import judge


def conclude(study: Study, bar: float | None = None) -> Study:
    """Return `study` with all that follows from its points; may be done again, with another bar.

    Args:
        study: its points as `samestep.scaling.measured`, `samestep.scaling.times` or anyone else made them.
        bar: the efficiency from which on workers are worth it, as ``--worth`` asks.
    """
    points = with_losses(relate(study.points))
    return replace(
        study,
        points=points,
        fit=fits(points),
        verdict=judge(points, bar),
        notes=tuple(dict.fromkeys((*study.notes, *notes(points)))),
    )
