"""Why a run gave nothing, in one line."""

import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from samestep.base.errors import UsageError
from samestep.base.units import counted
from samestep.launch.failure import follows_from_another
from samestep.scaling.rank_files import RankFile, Run, read_ranks
from samestep.scaling.samples import in_samples
from samestep.scaling.steps import steady
from samestep.trials.trial import Outcome, Trial

LATE_S = 5.0
"""How long a file may take from the node that wrote it to be seen here."""

_LONGEST = 300
_REFUSED = "samestep: error: "
_LAUNCHER = "samestep: "
"""How a line of what starts the workers begins: it tells who ended, not why."""
_EXCEPTION = re.compile(r"[\w.]+(Error|Exception)\b")
"""How the last line of a traceback begins."""


def outcome_of(trial: Trial, exit_code: int) -> Outcome:
    """Return how a run went that has ended.

    Args:
        trial: the run.
        exit_code: of what started its workers, as a shell counts it.
    """
    if exit_code:
        why = _said(trial) or f"exit code {exit_code}{_signal(exit_code)}, and nothing was printed"
        return Outcome(trial=trial, exit_code=exit_code, error=_short(why))
    try:
        rate = _measured(trial)
    except UsageError as error:
        return Outcome(trial=trial, error=_short(str(error)))
    return Outcome(trial=trial, samples_per_second=rate)


def _measured(trial: Trial) -> float:
    """Return the samples a second of a run that ended well.

    Raises:
        UsageError: it gave none.
    """
    ranks = read_ranks(trial.clock)
    if not any(rank.steps for rank in ranks):
        raise UsageError(_nothing_measured(ranks))
    if len(ranks) != trial.workers:
        raise UsageError(f"{len(ranks)} of {trial.workers} workers were clocked")
    (run,) = in_samples([Run(ranks=ranks)])
    return steady(run).samples_per_second


def is_complete(trial: Trial) -> bool:
    """Return whether all that the workers of a run write at its end is here, to the last line of each."""
    try:
        ranks = read_ranks(trial.clock)
    except UsageError:
        return False
    return len(ranks) == trial.workers and all(rank.end for rank in ranks)


def is_refused(outcome: Outcome) -> bool:
    """Return whether a run ended as one does that was called wrongly: exit code 2, and not a step made."""
    if outcome.exit_code != UsageError.exit_code:
        return False
    with suppress(UsageError):  # the clock of a run that never began has no file
        return not any(rank.end.get("made", 0) or rank.steps for rank in read_ranks(outcome.trial.clock))
    return True


def _nothing_measured(ranks: Sequence[RankFile]) -> str:
    """Return why no step of a run was taken down that ended well."""
    made, before = max(rank.end.get("made", 0) for rank in ranks), ranks[0].header.get("warm_up", 0)
    if made:
        return f"it ended after {counted(made, 'step')}, and the first {before} (--warm-up) do not count"
    return "no training step was seen: no optimizer made one, and there was no backward"


def _said(trial: Trial) -> str:
    """Return what a worker or the launcher said of a failure; else what was printed last."""
    failed = sorted(_failed(trial.clock), key=lambda one: follows_from_another(one[1], one[2]))
    for rank, kind, message in failed:
        if message or not kind.startswith("exit code"):
            return f"rank {rank}: {kind}: {message}".removesuffix(": ")
    lines = [line.strip() for line in _lines(trial.log) if line.strip()]
    refused = [line for line in lines if line.startswith(_REFUSED)]
    raised = [line for line in lines if _EXCEPTION.match(line)]
    own = [line for line in lines if not line.startswith(_LAUNCHER)]
    return (refused or raised or own or lines or [""])[-1].removeprefix(_REFUSED)


def _failed(clock: Path) -> Iterator[tuple[object, str, str]]:
    """Yield rank, kind and message of each error that a worker's clock tells of."""
    with suppress(UsageError):  # a file of it is missing, or damaged
        for rank in read_ranks(clock):
            ended, _, kind = str(rank.end.get("ended", "")).partition(":")
            if ended == "error":
                yield rank.header["rank"], kind.strip(), str(rank.end.get("message", ""))


def _lines(log: Path) -> list[str]:
    try:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _signal(exit_code: int) -> str:
    try:
        return f" ({signal.Signals(exit_code - 128).name})" if exit_code > 128 else ""
    except ValueError:
        return ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
