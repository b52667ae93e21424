"""Submits the jobs of a study to Slurm, and records them on disk for a later ``--collect``."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from samestep.base.errors import UsageError
from samestep.base.record import write_json
from samestep.base.regular_files import read_text
from samestep.base.signals import held
from samestep.base.units import counted
from samestep.base.untrusted_documents import parse_json
from samestep.launch.submit.slurm_commands import Ask, ask, submit
from samestep.studies.scaling.sweep.collect import Frame
from samestep.studies.scaling.sweep.jobs import FOLDER, StudyJob
from samestep.studies.scaling.sweep.local import prepare
from samestep.studies.scaling.sweep.plan import Request, plan
from samestep.studies.scaling.sweep.queue import SubmittedJob
from samestep.studies.scaling.sweep.trial import Report
from samestep.studies.scaling.sweep.variants import Variant

NAME = "jobs.json"
"""The name of the record in the study's folder."""

_FORMAT = 1


def submit_all(
    jobs: Sequence[StudyJob],
    folder: Path,
    *,
    record: Callable[[Sequence[SubmittedJob]], None],
    report: Report,
    ask: Ask = ask,
) -> list[SubmittedJob]:
    """Submit all jobs to Slurm; after an error none of them is left in the queue, and no file.

    Args:
        jobs: of the study.
        folder: of the study, empty.
        record: is called after each job with all jobs that were submitted so far.
        report: is called with the result of cancelling jobs after an error.
        ask: executes one of Slurm's commands; tests pass their own.

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
    """Submit one job to Slurm."""
    script = folder / FOLDER / f"{job.request.workers}.sbatch"
    try:
        script.parent.mkdir(parents=True, exist_ok=True)
        for trial in job.trials:
            prepare(trial)
        script.write_text(job.script(), encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise _not_writable(folder, error) from None
    name = f"of {counted(job.request.workers, 'worker')}"
    number = submit(script, name=name, ask=ask)
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
    for made in {folder / FOLDER, *(trial.folder.parent for job in jobs for trial in job.trials)}:
        shutil.rmtree(made, ignore_errors=True)
    (folder / NAME).unlink(missing_ok=True)


def _not_writable(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write the study to {folder}: {error.strerror}. Give another folder (--out).")


def write_jobs(folder: Path, jobs: Sequence[SubmittedJob], frame: Frame, command: Sequence[str]) -> None:
    """Write the record of submitted jobs.

    Args:
        folder: of the study.
        jobs: that were submitted so far.
        frame: of the study.
        command: that made the study.

    Raises:
        UsageError: it cannot be written.
    """
    record = {
        "format": _FORMAT,
        "command": list(command),
        "frame": asdict(frame) | {"request": asdict(frame.request) | {"folder": str(folder)}},
        "jobs": [{"number": job.number, "log": str(job.log), "workers": job.workers} for job in jobs],
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
    try:
        record = parse_json(read_text(file))
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}. Give --collect the folder of a submitted study."
        ) from None
    except ValueError as error:
        raise UsageError(f"{file} is damaged: it is not JSON ({error}).") from None
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        raise UsageError(f"{file} is not of format {_FORMAT}; collect it with the version that wrote it.")
    try:
        frame = _frame(record["frame"], folder.absolute())
        return _submitted(record["jobs"], frame), frame, tuple(record["command"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{file} is damaged: its list of submitted jobs is invalid ({error}).") from None


def _submitted(jobs: Sequence[Mapping[str, Any]], frame: Frame) -> list[SubmittedJob]:
    if not all(isinstance(job["number"], str) for job in jobs):
        raise TypeError("the number of a job is not text")
    trials = plan(frame.request)  # deterministic, so these are the submitted runs
    return [
        SubmittedJob(
            number=job["number"],
            log=Path(job["log"]),
            trials=tuple(trial for trial in trials if trial.workers == job["workers"]),
        )
        for job in jobs
    ]


def _frame(fields: Mapping[str, Any], folder: Path) -> Frame:
    request = _request(fields["request"], folder)
    return Frame(**{**fields, "request": request, "notes": tuple(fields["notes"])})


def _request(fields: Mapping[str, Any], folder: Path) -> Request:
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    values["variants"] = tuple(Variant(**{**one, "flags": tuple(one["flags"])}) for one in fields["variants"])
    return Request(**{**values, "folder": folder})
