"""Computes confidence intervals of rates from the repeats of a run."""

import math
from collections.abc import Sequence
from statistics import fmean, median_high, median_low, stdev
from typing import Any, TypeAlias

Interval: TypeAlias = tuple[float, float]

# Student's t, 97.5 %, by degrees of freedom from 1.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def known(low: float | None, high: float | None) -> Interval | None:
    """Return the interval between two ends, or None if they are unknown."""
    return None if low is None or high is None else (low, high)


def is_vague(between: Interval) -> bool:
    """Return whether an interval is too wide for a conclusion: more than a factor of two."""
    low, high = between
    return high > 2 * low


def of_repeats(rates: Sequence[float]) -> Interval | None:
    """Return the 95 % interval of a rate by Student's t over repeats, on a scale of ratios.

    The steps of one run share its placement and its background load, so only runs are repeats: a single run
    has no interval, however many steps it has.
    """
    if len(rates) < 2:
        return None
    logs = [math.log(rate) for rate in rates]
    half = student_t(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    middle = fmean(logs)
    return min(math.exp(middle - half), median_low(rates)), max(math.exp(middle + half), median_high(rates))


def of_rates(rates: tuple[float, ...]) -> dict[str, Any]:
    """Return the fields of a point that follow from the rates of its repeats.

    The rate is that of one repeat, so that the phases of that run can be shown with it.
    """
    low, high = of_repeats(rates) or (None, None)
    ends = {"samples_per_second_low": low, "samples_per_second_high": high}
    return {"samples_per_second": median_low(rates), **ends, "runs": rates}


def of_ratio(one: float, other: float, of_one: Interval | None, of_other: Interval | None) -> Interval | None:
    """Return the interval of ``one / other`` from those of both; None if one of them is unknown.

    It uses the method of variance estimates recovery, on a scale of ratios. Unlike the quotients of the
    ends, it does not assume that both rates are at opposite ends at the same time.
    """
    if of_one is None or of_other is None:
        return None
    down = math.hypot(math.log(one / of_one[0]), math.log(of_other[1] / other))
    up = math.hypot(math.log(of_one[1] / one), math.log(other / of_other[0]))
    return one / other * math.exp(-down), one / other * math.exp(up)


def student_t(freedom: int) -> float:
    """Return Student's t for a two-sided 95 % interval with `freedom` degrees of freedom, at least 1."""
    return _T[freedom - 1] if freedom <= len(_T) else 1.96 + 2.4 / freedom
