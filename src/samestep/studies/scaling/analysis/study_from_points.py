"""Computes a study from its points: relations, losses, fits, verdict and notes."""

from collections.abc import Iterable
from dataclasses import replace

from samestep.studies.scaling.analysis.model_fits import fits
from samestep.studies.scaling.analysis.notes import notes
from samestep.studies.scaling.analysis.overhead_causes import with_losses
from samestep.studies.scaling.analysis.speedup import relate
from samestep.studies.scaling.analysis.study import Finding, Study
from samestep.studies.scaling.analysis.verdict import judge


def conclude(study: Study, bar: float | None = None) -> Study:
    """Return `study` with everything that follows from its points; it can be repeated with another bar.

    Args:
        study: with points from `points_from_runs` or `points_from_times`.
        bar: the efficiency from which on workers are worth it, as ``--worth`` requests.
    """
    points = with_losses(relate(study.points))
    study = replace(study, points=points, fit=fits(points), verdict=judge(points, bar))
    return with_notes(study, notes(points))


def with_notes(study: Study, added: Iterable[Finding]) -> Study:
    """Return `study` with further notes; those that it has already are not repeated."""
    added = tuple(added)
    return replace(
        study,
        notes=tuple(dict.fromkeys((*study.notes, *(one.words for one in added)))),
        findings=tuple(dict.fromkeys((*study.findings, *added))),
    )
