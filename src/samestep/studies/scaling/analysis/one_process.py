"""Compares the workers of one host with one process on all of their cores, as it runs without samestep."""

from collections.abc import Sequence
from typing import NamedTuple

from samestep.studies.scaling.analysis.point_text import is_vague
from samestep.studies.scaling.analysis.speedup import AS_FAST, fair, one_process_of, over, rate_ratio
from samestep.studies.scaling.analysis.study import Point


class AsFast(NamedTuple):
    """One process that is as fast as all numbers of workers; `workers` is the fastest of these, over it."""

    workers: Point
    is_certain: bool
    is_open: bool  # whether the runs differ too much for a conclusion


def threads_as_fast(series: Sequence[Point], one_process: Sequence[Point]) -> AsFast | None:
    """Return the comparison if one process is as fast as all larger numbers of workers; otherwise None.

    The fastest process is compared with the fastest workers, since a user without samestep gives one process
    all cores, however many workers are measured. Workers on several nodes have cores that a process lacks.
    """
    base, *larger = fair(series) or series
    alone = one_process_of(series, one_process)
    if not larger or not alone or any(point.nodes > 1 for point in larger):
        return None
    process, workers = (max(points, key=lambda one: one.samples_per_second) for points in (alone, larger))
    if process.samples_per_second < base.samples_per_second:
        return None  # the one worker like each is the better baseline, and speedups are over it
    if workers.samples_per_second > AS_FAST * process.samples_per_second:
        return None
    known = [rate_ratio(point, process) for point in larger]
    ends = [one for one in known if one is not None]
    is_certain = len(ends) == len(larger) and all(high <= AS_FAST for _, high in ends)
    is_open = any(is_vague(one) and one[1] > AS_FAST for one in ends)
    return AsFast(over(workers, process), is_certain, is_open and not is_certain)
