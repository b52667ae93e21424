"""The jobs of a study, followed together: each run's end is found in its folder, why a job ended at Slurm."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic, sleep

from samestep.base.errors import Error
from samestep.base.units import counted
from samestep.submit.cluster import FollowedSlurmJob
from samestep.submit.follow import FollowedJob, JobStatus
from samestep.submit.sequence import exit_code
from samestep.submit.states import WITH_REQUEUE
from samestep.trials.failed import LATE_S, is_complete, outcome_of
from samestep.trials.trial import Outcome, Told, Trial

_FILES_S = 0.3
"""Between two looks at the runs' folders."""

_FIRST_S, _GROWTH, _LONGEST_S = 0.5, 1.3, 10.0
"""Between two questions to the scheduler about each job: it has many users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A job of a study that Slurm has taken.

    Args:
        number: of the job.
        log: what its script prints, beside its runs.
        trials: its runs.
    """

    number: str
    log: Path
    trials: tuple[Trial, ...]

    @property
    def workers(self) -> int:
        """Workers of each of its runs."""
        return self.trials[0].workers

    def in_words(self) -> str:
        """Return which one it is."""
        return f"job {self.number} ({counted(self.workers, 'worker')})"

    def log_words(self) -> str:
        """Return where its log is, and how it ends: Slurm writes there why it has ended a job."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            lines = []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"its log {self.log} ends: {last}" if last else f"its log: {self.log}"


class Queue:
    """Runs trials that are in jobs already: follows the jobs until all have ended.

    Args:
        jobs: to follow.
        say: takes each change of a job's state, as a sentence.
        followed: asks for the state of the job with a number.
        pause: waits for seconds.
        now: tells the time in seconds.
    """

    def __init__(
        self,
        jobs: Sequence[Submitted],
        *,
        say: Told,
        followed: Callable[[str], FollowedJob] = FollowedSlurmJob,
        pause: Callable[[float], None] = sleep,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._jobs = [_Following(job, followed(job.number), say) for job in jobs]
        self._pause = pause
        self._now = now

    def run(self, trials: Sequence[Trial], told: Told) -> Iterator[Outcome]:  # noqa: ARG002 - they run already
        """Yield how each run went, as it is found to have ended.

        Args:
            trials: those of the jobs.
            told: at the end of each.
        """
        for outcome in self._outcomes():
            told(outcome.trial.in_words())
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
                    said = job.said
                    yield from self._asked(job)
                    every = every if job.said == said else _FIRST_S
            self._pause(_FILES_S)

    def _asked(self, job: "_Following") -> Iterator[Outcome]:
        """Ask Slurm for a job's state; of one that has ended, yield the runs that were not."""
        if job.over:
            return
        seen = job.look()
        if seen.exit_code is None:
            return
        since = self._now()
        yield from job.arrived(since)
        while job.left and (job.is_late or not seen.cut_off) and self._now() - since < LATE_S:
            self._pause(_FILES_S)
            yield from job.arrived(self._now())
        yield from job.ended(seen)


class _Following:
    """One of the jobs.

    Args:
        job: to follow.
        followed: asks for its state.
        say: takes each change of it.
    """

    def __init__(self, job: Submitted, followed: FollowedJob, say: Told) -> None:
        self.left = list(job.trials)
        self.said = ""
        self._failed: list[tuple[Trial, int]] = []
        self._ended_at: dict[int, float] = {}
        self._job = job
        self._followed = followed
        self._say = say

    @property
    def over(self) -> bool:
        """Whether nothing more is to be learnt: a run that failed may have been ended with its job."""
        return not self.left and not self._failed

    @property
    def is_late(self) -> bool:
        """Whether a run has ended of which something is still on its way from a node."""
        return any(exit_code(trial.folder) == 0 for trial in self.left)

    def arrived(self, now: float) -> Iterator[Outcome]:
        """Yield the runs that are found to have ended well.

        Args:
            now: the time in seconds.
        """
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

    def look(self) -> JobStatus:
        """Ask for the job's state; say it where it has changed."""
        try:
            seen = self._followed.status()
        except Error as error:  # Slurm has forgotten it
            seen = JobStatus(words=f"has ended, how is not known ({str(error).rstrip('.')})", exit_code=1)
        words = _without_requeue(seen.words)
        if words != self.said:
            self.said = words
            self._say(f"{self._job.in_words()} {words}.")
        return seen

    def ended(self, seen: JobStatus) -> Iterator[Outcome]:
        """Yield the runs of a job that has ended which did not end well; of repeats, one speaks for all."""
        yield from self.arrived(inf)
        why = f"job {self._job.number} {self.said}"
        cut = [
            Outcome(trial=one, exit_code=None, error=f"{why}; {self._job.log_words()}") for one in self.left
        ]
        failed = [
            Outcome(trial=trial, exit_code=code, error=why) if seen.cut_off else outcome_of(trial, code)
            for trial, code in self._failed
        ]
        for trial in self.left:  # what its script wrote until then
            shutil.rmtree(trial.scratch, ignore_errors=True)
        self.left, self._failed = [], []
        yield from {outcome.trial.case: outcome for outcome in reversed([*failed, *cut])}.values()


def _without_requeue(words: str) -> str:
    """Return what is said of a job without a flag that only ``samestep submit`` has."""
    return words.replace(f"; {WITH_REQUEUE}", "").replace(f" ({WITH_REQUEUE})", "")
