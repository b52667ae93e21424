"""Determines the outcome of a run: its rate, or the reason in one line why it has none."""

import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from samestep.base.errors import UsageError
from samestep.base.units import counted
from samestep.launch.local.failure import follows_from_another
from samestep.studies.scaling.analysis.rank_files import Run, read_ranks
from samestep.studies.scaling.analysis.run_steps import steady_steps
from samestep.studies.scaling.analysis.samples import in_samples
from samestep.studies.scaling.sweep.trial import Outcome, Trial

LATE_S = 5.0
"""The longest time until a file that was written on another node is visible here."""

_LONGEST = 300
_REFUSED = "samestep: error: "
# The prefix of a launcher's line, which names the rank that ended but not the reason.
_LAUNCHER = "samestep: "
_EXCEPTION = re.compile(r"[\w.]+(Error|Exception)\b")  # the beginning of the last line of a traceback


def outcome_of(trial: Trial, exit_code: int) -> Outcome:
    """Return the outcome of a run that has ended with an exit code, in the convention of shells."""
    if exit_code:
        why = _reason(trial) or f"exit code {exit_code}{_signal(exit_code)} without output"
        return Outcome(trial=trial, exit_code=exit_code, error=_short(why))
    try:
        rate = _measured(trial)
    except UsageError as error:
        return Outcome(trial=trial, error=_short(str(error)))
    return Outcome(trial=trial, samples_per_second=rate)


def _measured(trial: Trial) -> float:
    """Return the samples per second of a run that ended with exit code 0.

    Raises:
        UsageError: it has none.
    """
    ranks = read_ranks(trial.clock)
    if not any(rank.steps for rank in ranks):
        made, before = max(rank.end.get("made", 0) for rank in ranks), ranks[0].header.get("warm_up", 0)
        raise UsageError(
            f"it ended after {counted(made, 'step')}, and the first {before} (--warm-up) are not measured"
            if made
            else "it has no training step: neither an optimizer step nor a backward"
        )
    if len(ranks) != trial.workers:
        raise UsageError(f"{len(ranks)} of {trial.workers} workers have a file")
    (run,) = in_samples([Run(ranks=ranks)])
    return steady_steps(run).samples_per_second


def is_complete(trial: Trial) -> bool:
    """Return whether the files of all workers of a run are complete."""
    try:
        ranks = read_ranks(trial.clock)
    except UsageError:
        return False
    return len(ranks) == trial.workers and all(rank.end for rank in ranks)


def is_usage_error(outcome: Outcome) -> bool:
    """Return whether a run had wrong arguments: it ended with exit code 2 before its first step."""
    if outcome.exit_code != UsageError.exit_code:
        return False
    with suppress(UsageError):  # a run that ended before its first step can have no file
        return not any(rank.end.get("made", 0) or rank.steps for rank in read_ranks(outcome.trial.clock))
    return True


def _reason(trial: Trial) -> str:
    """Return the error that a worker or the launcher reported; else the last line of output."""
    failed = sorted(_failed(trial.clock), key=lambda one: follows_from_another(one[1], one[2]))
    for rank, kind, message in failed:
        if message or not kind.startswith("exit code"):
            return f"rank {rank}: {kind}: {message}".removesuffix(": ")
    lines = log_lines(trial.log)
    refused = [line for line in lines if line.startswith(_REFUSED)]
    raised = [line for line in lines if _EXCEPTION.match(line)]
    own = [line for line in lines if not line.startswith(_LAUNCHER)]
    return (refused or raised or own or lines or [""])[-1].removeprefix(_REFUSED)


def _failed(clock: Path) -> Iterator[tuple[object, str, str]]:
    """Yield rank, kind and message of each error that a worker recorded."""
    with suppress(UsageError):  # a file is missing or damaged
        for rank in read_ranks(clock):
            ended, _, kind = str(rank.end.get("ended", "")).partition(":")
            if ended == "error":
                yield rank.header["rank"], kind.strip(), str(rank.end.get("message", ""))


def log_lines(log: Path) -> list[str]:
    """Return the lines of a log that are not empty, without spaces around them."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line.strip() for line in lines if line.strip()]


def _signal(exit_code: int) -> str:
    try:
        return f" ({signal.Signals(exit_code - 128).name})" if exit_code > 128 else ""
    except ValueError:
        return ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
