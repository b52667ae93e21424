"""A study as it is made: run by run, with what is known so far kept whatever happens."""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from statistics import fmean

from samestep.base.errors import UsageError
from samestep.base.signals import held, interruptible
from samestep.base.units import counted, seconds_text
from samestep.cli.main import INTERRUPTED
from samestep.cli.progress import progress_bar
from samestep.cli.running import tell
from samestep.report.run_page import NAME as PAGE
from samestep.report.scaling.page import write_study_page
from samestep.scaling.files import NAME, write_study
from samestep.scaling.study import Study
from samestep.submit.words import slug
from samestep.trials.collect import Frame, collect_study, in_words, log_of
from samestep.trials.trial import Outcome, Report, Runner, Trial

FOLDER = Path("studies")
"""Where studies are kept, below the folder they are made from."""


def default_folder(target: str) -> Path:
    """Return where a study goes if nobody says."""
    name = slug(Path(target).name.removesuffix(".py"))
    return FOLDER / f"{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def refuse_taken(folder: Path) -> None:
    """Refuse the folder of another study, and one that there cannot be; nothing is made.

    Raises:
        UsageError: it is such a one.
    """
    try:
        there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        if not there.is_dir():
            raise UsageError(f"--out {folder}: {there} is a file. Give another folder.")
        taken = next(folder.iterdir(), None) if there == folder.absolute() else None
    except OSError as error:
        raise UsageError(f"--out {folder}: {error.strerror}. Give another folder.") from None
    if taken is not None:
        raise UsageError(f"--out {folder}: there is {taken.name} in it already. Give a folder without files.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"--out {folder}: {there} cannot be written to. Give another folder.")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Make the folder of a study; that of another is left alone, and one that stays empty is not left behind.

    Raises:
        UsageError: it is taken, or cannot be made.
    """
    refuse_taken(folder)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder}: {error.strerror}. Give another folder.") from None
    try:
        yield folder
    finally:
        with suppress(OSError):  # the first that is not empty ends it
            for path in made:
                path.rmdir()


def finish(
    frame: Frame,
    trials: Sequence[Trial],
    runner: Runner,
    *,
    command: Sequence[str] | None = None,
    goes_on: bool = False,
) -> tuple[Study, int]:
    """Run trials, write the study of them, and return it with the exit code: 2 where it cannot be written.

    Ctrl-C and SIGTERM end the run that is on; the study of those before is written all the same, however
    often they come. Where there is none before, nothing is left.

    Args:
        frame: what the study is of.
        trials: in their order.
        runner: runs them.
        command: that asked for them, if not this one.
        goes_on: whether runs do not end with this command.

    Raises:
        UsageError: nothing can be run here.
        KeyboardInterrupt: somebody ended it before the first run was over.
    """
    outcomes: list[Outcome] = []
    ended = 0
    request = frame.request
    each = f"{request.steps} steps each, behind {request.warm_up} that do not count"
    tell(f"{in_words(request)}: {counted(len(trials), 'run')}, {each}")
    with held():  # whoever ends it in the meantime, and ends it again: what was measured is written
        try:
            with interruptible(), _progress(len(trials)) as told:
                for outcome in runner.run(trials, told):
                    outcomes.append(outcome)
                    why = _reason(outcome, request.folder) if outcome.error else _result(trials, outcomes)
                    tell(f"{outcome.trial.in_words()}: {why}")
        except KeyboardInterrupt:
            if not outcomes and not goes_on:
                _forget(trials)
                tell("ended before the first run was over: nothing is kept.")
                raise
            ended = INTERRUPTED
        except OSError:  # nobody can be told: the terminal is gone
            _kept(collect_study(frame, trials, outcomes, command=command), request.folder)
            raise
        study = collect_study(frame, trials, outcomes, command=command)
        try:
            where = f"study: {request.folder}, as a page: {_kept(study, request.folder)}"
        except UsageError as error:  # as on a full disk; what was measured can be printed all the same
            where, ended = f"error: {error} The study is only printed.", error.exit_code
    if ended == INTERRUPTED:
        tell(f"ended; made were {len(outcomes)} of {counted(len(trials), 'run')}.")
    tell(where)
    return study, ended or int(any(outcome.error for outcome in outcomes))


def _forget(trials: Sequence[Trial]) -> None:
    """Remove all that runs have left."""
    for folder in {trial.folder.parent for trial in trials}:
        shutil.rmtree(folder, ignore_errors=True)


def _reason(outcome: Outcome, folder: Path) -> str:
    """Return why a run gave nothing, and where what it printed is."""
    why = outcome.error.removesuffix(".")
    return f"{why}. Its log: {log_of(outcome.trial, folder)}" if outcome.trial.log.exists() else f"{why}."


def _result(trials: Sequence[Trial], outcomes: Sequence[Outcome]) -> str:
    """Return what the last run gave, and, where runs are made one by one, about how long the rest takes."""
    last = outcomes[-1]
    rate = f"{last.samples_per_second:,.4g} samples/s"
    took = [outcome.seconds for outcome in outcomes if outcome.seconds is not None]
    if last.seconds is None:
        return rate
    ran = {outcome.trial.number for outcome in outcomes}
    failed = {outcome.trial.case for outcome in outcomes if outcome.error}
    left = sum(one.number not in ran and one.case not in failed for one in trials)
    rest = f"; {counted(left, 'run')} to go, about {seconds_text(left * fmean(took))}" if left else ""
    return f"{rate}, in {seconds_text(last.seconds)}{rest}"


def _kept(study: Study, folder: Path) -> Path:
    """Write a study and its page; return the page's path."""
    write_study(folder / NAME, study)
    return write_study_page(study, folder / PAGE)


@contextmanager
def _progress(total: int) -> Iterator[Report]:
    """Give what tells of each run before it begins: a bar on a terminal, lines elsewhere."""
    with progress_bar(total, shown=True) as done:
        begun = 0

        def told(what: str) -> None:
            nonlocal begun
            begun += 1
            done(what)
            if not sys.stderr.isatty():
                tell(f"run {begun} of {total}: {what}")

        yield told
