"""``samestep run --scratch DIR``: a run that leaves the user's files as they are."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.launch.hosting import Ending
from samestep.world.detect import detect

if TYPE_CHECKING:
    from samestep.cli.running import Decision


def with_scratch(decision: "Decision", scratch: Path | None) -> "Decision":
    """Return a decision with the folder that all writes are to go to, if the user named one.

    Raises:
        UsageError: what this program writes cannot be led elsewhere.
    """
    if scratch is None:
        return decision
    if decision.alone or decision.job.program.kind == "executable":
        raise UsageError(
            "--scratch leads elsewhere what a Python script writes that does not start its own workers; "
            f"{decision.job.program.target} is none."
        )
    return replace(decision, options=replace(decision.options, scratch=scratch.absolute()))


def apart(run: Callable[[], Ending], *, scratch: Path) -> Ending:
    """Run a worker's program, and have all that it writes go into a folder of its own within `scratch`."""
    from samestep.autopilot.overlay_calls import writing_to

    with writing_to(scratch, detect(env.snapshot()).place.rank):
        return run()
