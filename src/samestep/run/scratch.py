"""Redirects all files that a program writes to a folder (``samestep run --scratch DIR``)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.launch.local.hosting import Ending
from samestep.launchers.detect import detect
from samestep.run.decision import Decision


def with_scratch(decision: Decision, scratch: Path | None) -> Decision:
    """Return the decision with the folder of ``--scratch``, if one was given.

    Raises:
        UsageError: the program's writes cannot be redirected.
    """
    if scratch is None:
        return decision
    if decision.starts_own_workers or decision.job.program.kind == "executable":
        raise UsageError(
            "--scratch needs a Python script that does not start its own workers, and "
            f"{decision.job.program.target} is not one. Leave it out."
        )
    return replace(decision, options=replace(decision.options, scratch=scratch.absolute()))


def run_in_scratch(run: Callable[[], Ending], *, scratch: Path) -> Ending:
    """Run a worker's program, and redirect what it writes to the worker's own folder in `scratch`."""
    from samestep.autopilot.files.overlay_calls import writing_to

    with writing_to(scratch, detect(env.snapshot()).place.rank):
        return run()
