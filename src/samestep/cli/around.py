"""What ``samestep run`` puts around each worker's program, and beside it."""

from functools import partial
from typing import TYPE_CHECKING

from samestep.cli.scratch import apart
from samestep.launch.programs import Around, Watch, as_it_is, unwatched
from samestep.measure.clock_file import Kind

if TYPE_CHECKING:
    from samestep.cli.running import Decision


def around(decision: "Decision") -> Around:
    """Return what runs each worker's program."""
    inner = _steering(decision)
    if decision.count:
        from samestep.cli.watching import counted

        inner = partial(counted, around=inner, native=not decision.steered)
    if decision.clocking is not None:
        from samestep.cli.clocking import clocked

        inner = partial(clocked, around=inner, clocking=decision.clocking, kind=_kind(decision))
    if not decision.sanitize:
        return inner
    from samestep.cli.watching import sanitized

    return partial(sanitized, around=inner, native=not decision.steered)


def watch(decision: "Decision", *, shared_by: int | None = None) -> Watch:
    """Return what runs and watches each worker's program."""
    if not decision.hang_timeout_s or decision.size == 1 or decision.alone:
        return unwatched
    from samestep.cli.watching import watching

    return watching(limit_s=decision.hang_timeout_s, steered=decision.steered, shared_by=shared_by)


def _steering(decision: "Decision") -> Around:
    """Return what steers a serial program; others run as they are, but for their files."""
    options = decision.options
    if not decision.steered and options.device == "auto":
        return as_it_is if options.scratch is None else partial(apart, scratch=options.scratch)
    from samestep.autopilot.steering import run_replicated

    return partial(run_replicated, guarded=decision.guarded, options=options)


def _kind(decision: "Decision") -> Kind:
    if decision.steered:
        return "steered"
    return "serial" if decision.script is not None and decision.script.kind == "serial" else "native"
