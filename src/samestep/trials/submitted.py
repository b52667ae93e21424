"""A study's jobs given to Slurm, and what is kept of them so that a later command can collect them."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from samestep.base.documents import parse_json
from samestep.base.errors import UsageError
from samestep.base.record import write_json
from samestep.base.regular_files import read_text
from samestep.base.signals import held
from samestep.base.units import counted
from samestep.submit.cluster import Ask, ask, submit
from samestep.trials.collect import Frame
from samestep.trials.jobs import FOLDER, StudyJob
from samestep.trials.local import prepare
from samestep.trials.plan import Request, plan
from samestep.trials.queue import Submitted
from samestep.trials.trial import Told
from samestep.trials.variants import Variant

NAME = "jobs.json"
"""In the study's folder."""

_FORMAT = 1


def submit_all(
    jobs: Sequence[StudyJob],
    folder: Path,
    *,
    taken: Callable[[Sequence[Submitted]], None],
    say: Told,
    ask: Ask = ask,
) -> list[Submitted]:
    """Give jobs to Slurm: all of them, or none, of which nothing is left; whatever happens in between.

    Args:
        jobs: of the study.
        folder: of the study, with nothing in it.
        taken: is given, after each, those that Slurm has taken so far.
        say: takes what became of those where not all were.
        ask: runs one of Slurm's commands; tests pass their own.

    Raises:
        UsageError: Slurm does not take one, or it cannot be written down.
        KeyboardInterrupt: somebody ended it.
    """
    done: list[Submitted] = []
    with held() as signals:  # between sbatch's end and a number that is written down nothing ends
        try:
            for job in jobs:
                signals.heed()
                done.append(_given(job, folder, ask))
                taken(done)
            signals.heed()
        except BaseException:
            if not done or _cancelled([job.number for job in done], ask, say):
                _forget(jobs, folder)
            raise
    return done


def _given(job: StudyJob, folder: Path, ask: Ask) -> Submitted:
    """Give one job to Slurm."""
    script = folder / FOLDER / f"{job.asked.workers}.sbatch"
    try:
        script.parent.mkdir(parents=True, exist_ok=True)
        for trial in job.trials:
            prepare(trial)
        script.write_text(job.script(), encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise _not_kept(folder, error) from None
    name = f"of {counted(job.asked.workers, 'worker')}"
    number = submit(script, name=name, ask=ask)
    return Submitted(number=number, log=Path(job.asked.output.replace("%j", number)), trials=job.trials)


def _cancelled(numbers: Sequence[str], ask: Ask, say: Told) -> bool:
    """Cancel jobs; return whether they are."""
    words = ["scancel", *numbers]
    answer = ask(words)
    if answer.code:
        say(f"what was submitted could not be cancelled ({answer.err.strip()}): {' '.join(words)}")
    else:
        say(f"what was submitted is cancelled: {', '.join(f'job {number}' for number in numbers)}")
    return not answer.code


def _forget(jobs: Sequence[StudyJob], folder: Path) -> None:
    """Remove all that was written for jobs which will not run."""
    for made in {folder / FOLDER, *(trial.folder.parent for job in jobs for trial in job.trials)}:
        shutil.rmtree(made, ignore_errors=True)
    (folder / NAME).unlink(missing_ok=True)


def _not_kept(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"the study cannot be kept in {folder}: {error.strerror}. Give another folder (--out).")


def keep(folder: Path, jobs: Sequence[Submitted], frame: Frame, command: Sequence[str]) -> None:
    """Write down what has been submitted.

    Args:
        folder: of the study.
        jobs: of which Slurm has numbers.
        frame: what the study is of.
        command: that made it.

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
        raise _not_kept(folder, error) from None


def kept(folder: Path) -> tuple[list[Submitted], Frame, tuple[str, ...]]:
    """Return the jobs of the study in `folder`, what it is of, and the command that made it.

    Raises:
        UsageError: none were submitted from there, or what was kept cannot be read.
    """
    file = folder / NAME
    try:
        record = parse_json(read_text(file))
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}. --collect takes the folder of a study that was submitted."
        ) from None
    except ValueError as error:
        raise UsageError(f"{file} is damaged: it is no JSON ({error}).") from None
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        raise UsageError(f"{file} is not of format {_FORMAT}: collect it with the version that wrote it.")
    try:
        frame = _frame(record["frame"], folder.absolute())
        return _submitted(record["jobs"], frame), frame, tuple(record["command"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{file} is damaged: it does not say what was submitted ({error}).") from None


def _submitted(jobs: Sequence[Mapping[str, Any]], frame: Frame) -> list[Submitted]:
    if not all(isinstance(job["number"], str) for job in jobs):
        raise TypeError("a job's number is no text")
    trials = plan(frame.request)  # the same, in the same order, as when they were submitted
    return [
        Submitted(
            number=job["number"],
            log=Path(job["log"]),
            trials=tuple(trial for trial in trials if trial.workers == job["workers"]),
        )
        for job in jobs
    ]


def _frame(told: Mapping[str, Any], folder: Path) -> Frame:
    return Frame(**{**told, "request": _request(told["request"], folder), "notes": tuple(told["notes"])})


def _request(told: Mapping[str, Any], folder: Path) -> Request:
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in told.items()
    }
    values["variants"] = tuple(Variant(**{**one, "flags": tuple(one["flags"])}) for one in told["variants"])
    return Request(**{**values, "folder": folder})
