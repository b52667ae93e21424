"""The flags of ``samestep run`` that control how a serial script is split across workers."""

from dataclasses import fields, replace
from typing import Any, get_args

from samestep.autopilot.options import DEFAULTS, BatchNormOver, Device, Load, Options, RandomOf, Split
from samestep.base.errors import UsageError
from samestep.cli.measured import refuse_unmeasured
from samestep.cli.running import Decision
from samestep.collectives.crossovers import check_algorithm
from samestep.launch.job import Std
from samestep.launch.plan import Spawn

_CHOICES = {
    "batch_norm": get_args(BatchNormOver),
    "load": get_args(Load),
    "device": get_args(Device),
    "random": get_args(RandomOf),
    "split": get_args(Split),
}


def with_options(decision: Decision, **flags: Any) -> Decision:
    """Return a decision with the flags of a serial script, as `Options` names them.

    Raises:
        UsageError: as of `checked`, or a flag does nothing for this program, or cannot be followed.
    """
    options = checked(**flags)
    if options.explain and not decision.steered:
        raise UsageError("--explain tells how a serial script is run on several workers; say -n 2 or more.")
    said = [one.name for one in fields(Options) if getattr(options, one.name) != getattr(DEFAULTS, one.name)]
    if said and (decision.script is None or decision.script.kind != "serial"):
        raise UsageError(
            f"{_flag(said[0])} says how a serial script is run on several workers, and "
            f"{decision.job.program.target} is not taken for one. Leave it out, or say --mode autopilot."
        )
    refuse_unmeasured(decision, options.algorithm)
    if options.all_output and isinstance(decision.plan, Spawn) and decision.job.logs.tee.is_empty:
        logs = replace(decision.job.logs, tee=Std.parse("--tee", "3"))
        decision = replace(decision, job=replace(decision.job, logs=logs))
    return replace(decision, options=options)


def checked(**flags: Any) -> Options:
    """Return the options that flags say, as `Options` names them.

    Raises:
        UsageError: one has a value that there is not.
    """
    options = Options(**flags)
    for name, choices in _CHOICES.items():
        if (value := getattr(options, name)) not in choices:
            raise UsageError(f"{_flag(name)} {value!r} is none of {', '.join(choices)}.")
    if options.check_every is not None and options.check_every < 0:
        raise UsageError(
            f"--check-every is {options.check_every}; give a number of calls (0 disables the check)."
        )
    if options.algorithm is not None:
        check_algorithm(options.algorithm)
    return options


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
