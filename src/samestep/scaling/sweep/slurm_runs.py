"""Submits the runs of a study to Slurm, records the jobs for a later ``--collect``, and waits for them.

There is one job for each number of workers, so that small ones can start early, and one for each one worker
with the cores of several. Each has all runs of its number of workers, in the study's shuffled order.
"""

import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from time import monotonic, sleep

from samestep.base.console import log
from samestep.base.documents import FormatError, read_as, read_json
from samestep.base.errors import INTERRUPTED, Error, UsageError
from samestep.base.record import write_json
from samestep.base.signals import held
from samestep.base.units import counted
from samestep.scaling.analysis.study import Study
from samestep.scaling.sweep.execution import Frame, finish, new_folder
from samestep.scaling.sweep.local_runs import prepare
from samestep.scaling.sweep.plan import plan
from samestep.scaling.sweep.trial import LATE_S, Outcome, Report, Trial, is_complete, log_lines, outcome_of
from samestep.submit.follow import FollowedJob, JobStatus
from samestep.submit.shell import Ask, run_command, slug
from samestep.submit.site_defaults import SlurmSite
from samestep.submit.slurm import (
    WITH_REQUEUE,
    FollowedSlurmJob,
    RecordedCommand,
    SlurmRequest,
    recorded_exit_code,
    recorded_script,
    refuse_without_sbatch,
    submit,
)

NAME = "jobs.json"
"""The name of the record in the study's folder."""

_SEPARATE_JOBS = (
    "Each number of workers was a separate job, so differences between them include those of their nodes and "
    "times."
)
_FOLDER = "jobs"  # the subfolder of a study for scripts and logs
_FORMAT = 1  # of the record

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


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyJob:
    """One job of a study: its resources, and its runs in order."""

    request: SlurmRequest
    trials: tuple[Trial, ...]

    def script(self) -> str:
        """Return the batch script."""
        commands = [
            RecordedCommand(words=trial.command, folder=trial.folder, variables=trial.environment)
            for trial in self.trials
        ]
        return recorded_script(self.request, commands, by="samestep scale")


@dataclass(frozen=True, slots=True)
class _JobRecord:
    number: str
    log: Path
    workers: int
    cores_of: int = 1


@dataclass(frozen=True, slots=True)
class _Record:
    """The content of `NAME`."""

    command: tuple[str, ...]
    frame: Frame
    jobs: tuple[_JobRecord, ...]


def jobs(
    trials: Sequence[Trial], folder: Path, *, name: str, site: SlurmSite, python: str, gpus: bool = False
) -> list[StudyJob]:
    """Return the jobs that execute the runs of the study in `folder`, the smallest first.

    Raises:
        UsageError: a run has a launcher other than Slurm.
    """
    launchers = sorted({trial.launcher for trial in trials} - {"", "srun"})
    if launchers:
        raise UsageError(
            f"--compare launcher={launchers[0]} does not work with --submit, since the workers are tasks of "
            "Slurm. Compare launchers in an allocation: salloc, or a job script that calls samestep scale."
        )
    return [
        StudyJob(
            request=SlurmRequest(
                name=f"{name}-{_file_name(workers, cores_of)}",
                nodes=nodes,
                per_node=workers // nodes,
                gpus_per_node=workers // nodes if gpus else 0,
                site=site
                if cores_of == 1
                else replace(site, cpus_per_task=cores_of * (site.cpus_per_task or 1)),
                output=str(folder.absolute() / _FOLDER / f"{_file_name(workers, cores_of)}-%j.log"),
                python=python,
            ),
            trials=_of_job(trials, workers, cores_of),
        )
        for workers, cores_of, nodes in sorted(
            {(trial.workers, trial.cores_of, trial.nodes) for trial in trials}
        )
    ]


def _of_job(trials: Sequence[Trial], workers: int, cores_of: int) -> tuple[Trial, ...]:
    return tuple(trial for trial in trials if (trial.workers, trial.cores_of) == (workers, cores_of))


def _file_name(workers: int, cores_of: int) -> str:
    return f"{workers}" if cores_of == 1 else f"{workers}-cores{cores_of}"


def submit_all(
    jobs: Sequence[StudyJob],
    folder: Path,
    *,
    record: Callable[[Sequence[SubmittedJob]], None],
    report: Report,
    ask: Ask = run_command,
) -> list[SubmittedJob]:
    """Submit all jobs to Slurm; after an error none of them is left in the queue, and no file.

    `record` is called after each job with all jobs that were submitted so far, `report` with the result of
    cancelling jobs after an error, and `ask` executes one of Slurm's commands.

    Raises:
        UsageError: Slurm refuses a job, or it cannot be recorded.
        KeyboardInterrupt: the user ended it.
    """
    done: list[SubmittedJob] = []
    with held() as signals:  # a job must be recorded before a signal ends this process
        try:
            for job in jobs:
                signals.heed()
                done.append(_submit(job, folder, ask))
                record(done)
            signals.heed()
        except BaseException:
            if not done or _cancel([job.number for job in done], ask, report):
                _delete_files(jobs, folder)
            raise
    return done


def _submit(job: StudyJob, folder: Path, ask: Ask) -> SubmittedJob:
    first = job.trials[0]
    script = folder / _FOLDER / f"{_file_name(first.workers, first.cores_of)}.sbatch"
    try:
        script.parent.mkdir(parents=True, exist_ok=True)
        for trial in job.trials:
            prepare(trial)
        script.write_text(job.script(), encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise _not_writable(folder, error) from None
    number = submit(script, name=f"of {counted(job.request.workers, 'worker')}", ask=ask)
    return SubmittedJob(number=number, log=Path(job.request.output.replace("%j", number)), trials=job.trials)


def _cancel(numbers: Sequence[str], ask: Ask, report: Report) -> bool:
    """Cancel jobs; return whether that succeeded."""
    words = ["scancel", *numbers]
    answer = ask(words)
    if answer.code:
        report(f"submitted jobs could not be cancelled ({answer.err.strip()}); run: {' '.join(words)}")
    else:
        report(f"submitted jobs were cancelled: {', '.join(f'job {number}' for number in numbers)}")
    return not answer.code


def _delete_files(jobs: Sequence[StudyJob], folder: Path) -> None:
    """Delete the files of jobs that will not run."""
    for made in {folder / _FOLDER, *(trial.folder.parent for job in jobs for trial in job.trials)}:
        shutil.rmtree(made, ignore_errors=True)
    (folder / NAME).unlink(missing_ok=True)


def _not_writable(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write the study to {folder}: {error.strerror}. Give another folder (--out).")


def write_jobs(folder: Path, jobs: Sequence[SubmittedJob], frame: Frame, command: Sequence[str]) -> None:
    """Write the record of the jobs that were submitted so far.

    Raises:
        UsageError: it cannot be written.
    """
    record = {
        "format": _FORMAT,
        "command": list(command),
        "frame": asdict(frame) | {"request": asdict(frame.request) | {"folder": str(folder)}},
        "jobs": [
            asdict(_JobRecord(job.number, job.log, job.trials[0].workers, job.trials[0].cores_of))
            | {"log": str(job.log)}
            for job in jobs
        ],
    }
    try:
        write_json(folder / NAME, record)
    except OSError as error:
        raise _not_writable(folder, error) from None


def read_jobs(folder: Path) -> tuple[list[SubmittedJob], Frame, tuple[str, ...]]:
    """Return the jobs of the study in `folder`, its frame, and the command that made it.

    Raises:
        UsageError: the folder has no record of jobs, or it cannot be read.
    """
    file = folder / NAME
    document = read_json(file, hint="Give --collect the folder of a submitted study.")
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise UsageError(f"{file} is not of format {_FORMAT}; collect it with the version that wrote it.")
    try:
        record: _Record = read_as(_Record, document, "record")
    except FormatError as error:
        raise UsageError(f"{file} is damaged: {error}.") from None
    frame = replace(record.frame, request=replace(record.frame.request, folder=folder.absolute()))
    trials = plan(frame.request)  # deterministic, so these are the submitted runs
    submitted = [
        SubmittedJob(number=job.number, log=job.log, trials=_of_job(trials, job.workers, job.cores_of))
        for job in record.jobs
    ]
    return submitted, frame, record.command


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
        return any(recorded_exit_code(trial.folder) == 0 for trial in self.left)

    def arrived(self, now: float) -> Iterator[Outcome]:
        """Yield the runs that have ended with exit code 0 until `now`, in seconds."""
        for trial in tuple(self.left):
            code = recorded_exit_code(trial.folder)
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
            Outcome(trial=trial, exit_code=None, error=f"{why}; {self._job.log_words()}")
            for trial in self.left
        ]
        failed = [
            Outcome(trial=trial, exit_code=code, error=why) if seen.cut_off else outcome_of(trial, code)
            for trial, code in self._failed
        ]
        for trial in self.left:
            shutil.rmtree(trial.scratch, ignore_errors=True)
        self.left, self._failed = [], []
        yield from {outcome.trial.case: outcome for outcome in reversed([*failed, *cut])}.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRuns:
    """The runs of a study as Slurm jobs, one for each number of workers."""

    site: SlurmSite  # requests of all jobs
    places: int  # number of workers that can compute at the same time
    per_node: int  # maximum number of workers per node
    gpus: int  # GPUs of each node; 0 for none
    threads: int | None  # compute threads of each worker, if the user gave a number
    detach: bool  # whether jobs are submitted and not followed
    resources: str = "the resources of their job"  # the resources behind `places`, in words

    def __post_init__(self) -> None:
        if 0 < self.gpus < self.per_node:
            raise UsageError(
                f"--nproc-per-node {self.per_node} needs a GPU for each worker, but --gpus-per-node is "
                f"{self.gpus}; ask for more GPUs or fewer workers."
            )

    @property
    def each(self) -> int | None:
        """Compute threads of each worker; None if they follow from the processors of its task."""
        return self.threads

    @property
    def on_cores(self) -> int:
        """The largest number of workers on a node that compute on separate cores; 1 for GPUs."""
        return 1 if self.gpus else self.per_node

    def describe(self, frame: Frame, trials: Sequence[Trial]) -> str:
        """Return the jobs' scripts."""
        return "\n".join(job.script() for job in self._jobs(frame, trials))

    def execute(self, frame: Frame, trials: Sequence[Trial]) -> tuple[Study, int] | list[str]:
        """Submit the jobs; follow them and return the study and the exit code, or return their numbers.

        Raises:
            UsageError: there is no Slurm, it rejects a job, or the folder is in use or its disk is full.
            KeyboardInterrupt: it was interrupted before all jobs were submitted; then none stays submitted.
        """
        refuse_without_sbatch()
        made = self._jobs(frame, trials)
        if len(made) > 1:
            frame = replace(frame, notes=(_SEPARATE_JOBS,))
        folder = frame.request.folder

        def record(taken: Sequence[SubmittedJob]) -> None:
            write_jobs(folder, taken, frame, sys.argv)
            job = taken[-1]
            nodes = counted(job.trials[0].nodes, "node")
            log(f"{job.in_words()} is submitted: {counted(len(job.trials), 'run')} on {nodes}.")

        with new_folder(folder):
            taken = submit_all(made, folder, record=record, report=log)
        if self.detach:
            return [job.number for job in taken]
        return _followed(frame, trials, taken)

    def _jobs(self, frame: Frame, trials: Sequence[Trial]) -> list[StudyJob]:
        name = slug(Path(frame.request.target).name.removesuffix(".py"))
        return jobs(
            trials,
            frame.request.folder,
            name=f"scale-{name}",
            gpus=self.gpus > 0,
            site=self.site,
            python=sys.executable,
        )


def collect(folder: Path, *, bar: float | None) -> tuple[Study, int]:
    """Collect the jobs of the study in `folder`; return the study and the exit code.

    `bar` is the efficiency of ``--worth``, if it differs from that of the submission.

    Raises:
        UsageError: the folder has no submitted study.
    """
    taken, frame, command = read_jobs(folder)
    frame = frame if bar is None else replace(frame, bar=bar)
    trials = sorted((trial for job in taken for trial in job.trials), key=lambda trial: trial.number)
    return _followed(frame, trials, taken, command=command)


def _followed(
    frame: Frame,
    trials: Sequence[Trial],
    taken: Sequence[SubmittedJob],
    *,
    command: Sequence[str] | None = None,
) -> tuple[Study, int]:
    """Follow jobs to their end; Ctrl-C ends the following, not the jobs."""
    study, code = finish(frame, trials, Queue(taken, report=log), command=command, continues=True)
    if code == INTERRUPTED:
        numbers = " ".join(job.number for job in taken)
        log(
            "the jobs continue. To collect them: samestep scale --collect "
            f"{shlex.quote(str(frame.request.folder))}; to end them: scancel {numbers}"
        )
    return study, code
