"""Executes runs on this host, one after another, each as its own command."""

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import monotonic, sleep

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.base.signals import held, interruptible
from samestep.launch.local.orphans import end_all, family
from samestep.studies.scaling.sweep.host_load import Load, sample_load
from samestep.studies.scaling.sweep.launchers import command
from samestep.studies.scaling.sweep.outcome import LATE_S, is_complete, is_usage_error, outcome_of
from samestep.studies.scaling.sweep.trial import Outcome, Report, Trial

_FILES_S = 0.1
"""The interval at which the files of a run are polled."""

_GRACE_S = 20.0
"""The time that a terminated run has to end its workers before it is killed."""


class Local:
    """A runner on this host, which executes one run at a time.

    Args:
        command: returns the command that starts the workers of a run and waits for them.
    """

    def __init__(self, command: Callable[[Trial], list[str]] = command) -> None:
        self.command = command

    def background_load(self) -> Load | None:
        """Return the load of other programs on the machine of the runs; None if unknown."""
        return sample_load()

    def run(self, trials: Sequence[Trial], report: Report) -> Iterator[Outcome]:
        """Execute runs one after another and yield the outcome of each.

        The repeats of a failed run are skipped, since they fail as well.

        Raises:
            UsageError: a run had wrong arguments or could not be started, and there is no result yet.
        """
        commands = [self.command(trial) for trial in trials]
        failed: set[object] = set()
        measured = False
        for trial, words in zip(trials, commands, strict=True):
            if trial.case in failed:
                continue
            background = self.background_load()
            report(trial.in_words())
            outcome = replace(_outcome(trial, words), background=background)
            measured = measured or not outcome.error
            if not measured and (outcome.exit_code is None or is_usage_error(outcome)):
                # No result is lost, and all other runs have the same arguments.
                why = outcome.error.removesuffix(".")
                log = f" Its log: {trial.log}" if trial.log.exists() else ""
                raise UsageError(f"{trial.in_words()}: {why}. Nothing was measured.{log}")
            if outcome.error:
                failed.add(trial.case)
            yield outcome


def prepare(trial: Trial) -> None:
    """Create the folders of a run, empty."""
    shutil.rmtree(trial.folder, ignore_errors=True)
    for folder in (trial.clock, trial.scratch):
        folder.mkdir(parents=True)


def _outcome(trial: Trial, words: Sequence[str]) -> Outcome:
    """Execute a run; one that cannot be started, as on a full disk, has failed."""
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
    """Execute a command and return its exit code; no process of it is left in any case."""
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
            _end(process)  # a second Ctrl-C must not leave it running
            shutil.rmtree(trial.scratch, ignore_errors=True)
    signals.heed()
    return 128 - code if code < 0 else code


def _await_files(trial: Trial) -> None:
    """Wait until the files of other nodes are complete here, which a network file system delays."""
    since = monotonic()
    while not is_complete(trial) and monotonic() - since < LATE_S:
        sleep(_FILES_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a run with its workers: terminate it, which ends them, and kill all of them after a time."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        started = family({process.pid})
        process.kill()
        process.wait()
        end_all(started, ended={process.pid})
