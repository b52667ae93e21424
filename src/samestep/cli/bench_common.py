"""Starts the workers of ``samestep bench``, and ends a measurement whose ranks wait for each other."""

import os
import time
from typing import NoReturn

from samestep.base.console import log
from samestep.base.errors import UsageError
from samestep.base.place import Place
from samestep.launch.job import Job
from samestep.run.decision import Decision
from samestep.run.execution import OWN_PROGRAM, decide_own


def decide_bench(workers: int | None, threads: int | None, bind: str) -> Decision:
    """Decide how a benchmark runs.

    Raises:
        UsageError: it has fewer than two workers, or cannot run like this.
    """
    decision = decide_own(Job(program=OWN_PROGRAM, workers=workers), threads=threads, bind=bind)
    if decision.size < 2:
        raise UsageError("one worker has no communication; give -n 2 or more, or start several tasks.")
    return decision


def exit_on_timeout(what: str, *, place: Place, timeout_s: float) -> NoReturn:
    """End this process, whose ranks wait for each other; rank 0 first logs why.

    Args:
        what: the call that does not end, in words.
        place: of this process.
        timeout_s: its time limit in seconds.
    """
    if place.is_main:
        log(
            f"error: {what} did not end within {timeout_s:g} s, so the ranks wait for each other. If this is "
            "expected, raise --timeout."
        )
    else:
        time.sleep(1)
    os._exit(1)
