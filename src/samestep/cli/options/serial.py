"""Declares options of verbs that run scripts, and checks those for serial scripts; it needs Linux."""

from dataclasses import fields, replace
from typing import Annotated, Any

from samestep.autopilot.script.options import DEFAULTS, Options
from samestep.base.errors import UsageError
from samestep.base.options import flag
from samestep.cli.options.declare import WORKERS_PANEL, option
from samestep.run.decision import Decision

SPLIT = ("short_calls", "device")
"""The options that control how a serial script is split."""

OF_ALL = ("device",)
"""Those of them that native scripts have too."""
_MODES = ("auto", "autopilot", "native")

Mode = Annotated[
    str | None,
    option(
        "",
        "auto: detect the kind of script; autopilot: it is serial; native: start it as it is.",
        WORKERS_PANEL,
        choices=_MODES,
    ),
]


def checked_mode(mode: str | None) -> str:
    """Return the value of ``--mode``, which is ``auto`` if it was not given.

    Raises:
        UsageError: there is no such mode.
    """
    if mode not in (None, *_MODES):
        raise UsageError(f"--mode {mode!r} is not one of {', '.join(_MODES)}.")
    return mode or "auto"


def with_options(decision: Decision, **flags: Any) -> Decision:
    """Return the decision with the flags of a serial script, by their names in `Options`.

    Raises:
        UsageError: a value is wrong, or a flag has no effect on this program.
    """
    options = Options(**flags)
    if options.explain and not decision.runs_once:
        raise UsageError("--explain is for serial scripts on several workers; give one, and -n 2 or more.")
    named = [
        field.name
        for field in fields(Options)
        if getattr(options, field.name) != getattr(DEFAULTS, field.name)
    ]
    if decision.job.program.kind != "executable" and not decision.starts_workers_alone:
        named = [name for name in named if decision.is_serial or name not in OF_ALL]
    if named and not decision.is_serial:
        raise UsageError(not_serial(named[0], decision.job.program.target))
    return replace(decision, options=options)


def not_serial(name: str, target: str) -> str:
    """Return the error message for an option of serial scripts that is given with another program."""
    return (
        f"{flag(name)} is for serial scripts, and {target} was not detected as one. Leave it out, or give "
        "--mode autopilot."
    )
