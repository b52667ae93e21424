"""Waits for the Slurm jobs of a study: polls the folders of their runs, and Slurm for their states."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic, sleep

from samestep.base.errors import Error
from samestep.launch.submit.follow import FollowedJob, JobStatus
from samestep.launch.submit.sequence import exit_code
from samestep.launch.submit.slurm_commands import WITH_REQUEUE, FollowedSlurmJob
from samestep.studies.scaling.sweep.trial import (
    LATE_S,
    Outcome,
    Report,
    Trial,
    is_complete,
    log_lines,
    outcome_of,
)

_FILES_S = 0.3  # the interval at which the folders of runs are polled

# The intervals at which the state of each job is polled; they grow, since a scheduler has many users.
_FIRST_S, _GROWTH, _LONGEST_S = 0.5, 1.3, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    """A submitted job of a study, with its runs and the log of its script, which is not that of its runs."""

    number: str
    log: Path
    trials: tuple[Trial, ...]

    def in_words(self) -> str:
        """Return a short description."""
        return f"job {self.number} ({self.trials[0].workers_in_words()})"

    def log_words(self) -> str:
        """Return path and last line of its log, to which Slurm writes why it ended a job."""
        lines = log_lines(self.log)
        return f"its log {self.log} ends: {lines[-1]}" if lines else f"its log: {self.log}"


class Queue:
    """A runner for submitted jobs, which waits until all of them have ended.

    Args:
        jobs: the jobs.
        report: is called with each change of a job's state, as a sentence.
        followed: returns an object that polls the state of the job with a number.
        pause: waits for seconds.
        now: returns the time in seconds.
    """

    def __init__(
        self,
        jobs: Sequence[SubmittedJob],
        *,
        report: Report,
        followed: Callable[[str], FollowedJob] = FollowedSlurmJob,
        pause: Callable[[float], None] = sleep,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._jobs = [_JobMonitor(job, followed(job.number), report) for job in jobs]
        self._pause = pause
        self._now = now

    def run(self, trials: Sequence[Trial], report: Report) -> Iterator[Outcome]:  # noqa: ARG002 - submitted
        """Yield the outcome of each run when it has ended, after a report of it."""
        for outcome in self._outcomes():
            report(outcome.trial.in_words())
            yield outcome

    def _outcomes(self) -> Iterator[Outcome]:
        every, asked = _FIRST_S, -inf
        while True:
            for job in self._jobs:
                yield from job.arrived(self._now())
            if all(job.over for job in self._jobs):
                return
            if self._now() - asked >= every:
                asked, every = self._now(), min(every * _GROWTH, _LONGEST_S)
                for job in self._jobs:
                    state = job.state
                    yield from self._poll(job)
                    every = every if job.state == state else _FIRST_S
            self._pause(_FILES_S)

    def _poll(self, job: "_JobMonitor") -> Iterator[Outcome]:
        """Poll Slurm for the state of a job; yield its remaining runs if it has ended."""
        if job.over:
            return
        seen = job.poll()
        if seen.exit_code is None:
            return
        since = self._now()
        yield from job.arrived(since)
        while job.left and (job.is_late or not seen.cut_off) and self._now() - since < LATE_S:
            self._pause(_FILES_S)
            yield from job.arrived(self._now())
        yield from job.ended(seen)


class _JobMonitor:
    """The state of one job and its runs."""

    def __init__(self, job: SubmittedJob, followed: FollowedJob, report: Report) -> None:
        self.left = list(job.trials)
        self.state = ""
        self._failed: list[tuple[Trial, int]] = []
        self._ended_at: dict[int, float] = {}
        self._job = job
        self._followed = followed
        self._report = report

    @property
    def over(self) -> bool:
        """Whether all outcomes are known; that of a failed run depends on the end of its job."""
        return not self.left and not self._failed

    @property
    def is_late(self) -> bool:
        """Whether a run has ended whose files are not complete yet, since a node writes them late."""
        return any(exit_code(trial.folder) == 0 for trial in self.left)

    def arrived(self, now: float) -> Iterator[Outcome]:
        """Yield the runs that have ended with exit code 0 until `now`, in seconds."""
        for trial in tuple(self.left):
            code = exit_code(trial.folder)
            if code is None:
                continue
            ended_at = self._ended_at.setdefault(trial.number, now)
            if code == 0 and now - ended_at < LATE_S and not is_complete(trial):
                continue
            self.left.remove(trial)
            shutil.rmtree(trial.scratch, ignore_errors=True)
            if code:
                self._failed.append((trial, code))
            else:
                yield outcome_of(trial, code)

    def poll(self) -> JobStatus:
        """Poll the state of the job, and report it if it has changed."""
        try:
            status = self._followed.status()
        except Error as error:  # Slurm has deleted its record
            status = JobStatus(words=f"has ended with unknown result ({str(error).rstrip('.')})", exit_code=1)
        # --requeue is a flag of samestep submit only.
        words = status.words.replace(f"; {WITH_REQUEUE}", "").replace(f" ({WITH_REQUEUE})", "")
        if words != self.state:
            self.state = words
            self._report(f"{self._job.in_words()} {words}.")
        return status

    def ended(self, seen: JobStatus) -> Iterator[Outcome]:
        """Yield the failed runs of a job that has ended, one for each group of repeats."""
        yield from self.arrived(inf)
        why = f"job {self._job.number} {self.state}"
        cut = [
            Outcome(trial=one, exit_code=None, error=f"{why}; {self._job.log_words()}") for one in self.left
        ]
        failed = [
            Outcome(trial=trial, exit_code=code, error=why) if seen.cut_off else outcome_of(trial, code)
            for trial, code in self._failed
        ]
        for trial in self.left:
            shutil.rmtree(trial.scratch, ignore_errors=True)
        self.left, self._failed = [], []
        yield from {outcome.trial.case: outcome for outcome in reversed([*failed, *cut])}.values()
