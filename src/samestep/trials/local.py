"""Runs trials on this host, each as a command of its own, one after another."""

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import monotonic, sleep

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.base.signals import held, interruptible
from samestep.launch.orphans import end_all, family
from samestep.trials.failed import LATE_S, is_complete, is_refused, outcome_of
from samestep.trials.launchers import command
from samestep.trials.load import Load, look
from samestep.trials.trial import Outcome, Told, Trial

_FILES_S = 0.1
"""Between two looks at a run's files."""

_POLITE_S = 20.0
"""How long a run may take to end its workers when it is ended; then it is killed."""


class Local:
    """Runs trials on this host, with nothing beside each.

    Args:
        command: gives the one that starts a trial's workers and waits for them.
    """

    def __init__(self, command: Callable[[Trial], list[str]] = command) -> None:
        self._command = command

    def others(self) -> Load | None:
        """Return what other programs do where runs are; None where nobody can tell."""
        return look()

    def run(self, trials: Sequence[Trial], told: Told) -> Iterator[Outcome]:
        """Run trials one after another and yield how each went.

        The repeats of one that fails are left out: they would fail as well.

        Raises:
            UsageError: a run was called wrongly or could not be started, and none before it gave anything.
        """
        commands = [self._command(trial) for trial in trials]
        failed: set[object] = set()
        measured = False
        for trial, words in zip(trials, commands, strict=True):
            if trial.case in failed:
                continue
            others = self.others()
            told(trial.in_words())
            outcome = replace(_outcome(trial, words), others=others)
            measured = measured or not outcome.error
            if not measured and (outcome.exit_code is None or is_refused(outcome)):
                # Nothing is lost yet, and every other run is made the same way.
                why = outcome.error.removesuffix(".")
                log = f" Its log: {trial.log}" if trial.log.exists() else ""
                raise UsageError(f"{trial.in_words()}: {why}. Nothing was measured.{log}")
            if outcome.error:
                failed.add(trial.case)
            yield outcome


def prepare(trial: Trial) -> None:
    """Make the folders of a trial, empty."""
    shutil.rmtree(trial.folder, ignore_errors=True)
    for folder in (trial.clock, trial.scratch):
        folder.mkdir(parents=True)


def _outcome(trial: Trial, words: Sequence[str]) -> Outcome:
    """Run a trial; one that cannot be started, as on a full disk, has failed, and others are there."""
    begun = monotonic()
    try:
        code = _ended(trial, words)
    except OSError as error:
        return Outcome(trial=trial, exit_code=None, error=f"it could not be started: {error.strerror}")
    took = monotonic() - begun
    if code == 0 and trial.nodes > 1:
        _await_files(trial)
    return replace(outcome_of(trial, code), seconds=took)


def _ended(trial: Trial, words: Sequence[str]) -> int:
    """Run a command and return its exit code; nothing of it is left, however this ends."""
    prepare(trial)
    with trial.log.open("wb") as log, held() as signals:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**env.snapshot(), **trial.environment},
        )
        try:
            with interruptible():
                signals.heed()
                code = process.wait()
        finally:
            _end(process)  # whoever is in a hurry and presses Ctrl-C again must not leave it behind
            shutil.rmtree(trial.scratch, ignore_errors=True)
    signals.heed()
    return 128 - code if code < 0 else code


def _await_files(trial: Trial) -> None:
    """Wait until what other nodes wrote is seen here, which a network's file system may take its time for."""
    since = monotonic()
    while not is_complete(trial) and monotonic() - since < LATE_S:
        sleep(_FILES_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a run that is not over, with its workers; it ends them itself, if it is asked."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_POLITE_S)
    except subprocess.TimeoutExpired:
        started = family({process.pid})
        process.kill()
        process.wait()
        end_all(started, ended={process.pid})
