"""Decides whether a difference is one of single precision: whether the runs agree in double precision."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from samestep.studies.verify.case import Comparison
from samestep.studies.verify.causes import causes
from samestep.studies.verify.verdict import Finding

_OF_VALUES = ("gradient", "gradient-norm", "loss", "update", "parameters")
"""Causes that rounding can have, when it grows by more than the disturbed run shows."""
_SINGLE = (1e-10, 1e-5)  # bounds of the machine epsilon of single precision
_SAME_IN_DOUBLE = 1e-9
"""Largest relative deviation in double precision in the disputed step, if rounding is all that there is."""


def may_be_rounding(comparison: Comparison, found: Sequence[Finding]) -> bool:
    """Return whether all faults of a run are deviations that rounding in single precision can have."""
    faults = [one for one in found if one.kind == "fault"]
    least, most = _SINGLE
    is_single = least < comparison.reference.facts.epsilon < most
    return is_single and bool(faults) and all(one.cause in _OF_VALUES for one in faults)


def decided_in_double(found: Sequence[Finding], double: Comparison | None) -> list[Finding]:
    """Return the findings of a run after its repetition in double precision; None if that failed."""
    if double is None:
        return [
            _with(one, "Its repetition in double precision failed, so rounding is not excluded.")
            for one in found
        ]
    fault = next(one for one in found if one.kind == "fault")
    disputed = [one.value for one in double.deviations if one.step <= (fault.step or 0)]
    worst = max(disputed, default=np.inf)
    if causes(double) or not worst <= _SAME_IN_DOUBLE:
        return list(found)
    statement = Finding(
        cause="single-precision",
        message=f"the {fault.cause} of step {fault.step} deviates by {fault.max_relative_deviation or 0:.1e} "
        f"in single precision, but in double precision by at most {worst:.1e} up to there: only the rounding "
        "of single precision makes the steps differ, and it decides those of one worker as well.",
        workers=fault.workers,
        step=fault.step,
        max_relative_deviation=float(worst),
        kind="note",
    )
    return [*(one for one in found if one.kind != "fault"), statement]


def _with(finding: Finding, text: str) -> Finding:
    return replace(finding, message=f"{finding.message} {text}") if finding.kind == "fault" else finding
