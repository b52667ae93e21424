"""Executes the runs of a scaling study, and writes the study, also after an interruption."""

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from statistics import fmean

from samestep.base.console import inform, log, progress_bar
from samestep.base.errors import INTERRUPTED, UsageError
from samestep.base.folders import claim_folder, refuse_unwritable
from samestep.base.signals import held, interruptible
from samestep.base.units import counted, seconds_text
from samestep.launch.submit.shell import slug
from samestep.studies.report.run_page import NAME as PAGE
from samestep.studies.scaling.analysis.study import Study
from samestep.studies.scaling.analysis.study_file import NAME, write_study
from samestep.studies.scaling.report.page import write_study_page
from samestep.studies.scaling.sweep.collect import Frame, collect_study, in_words, log_of
from samestep.studies.scaling.sweep.trial import Outcome, Report, Runner, Trial

FOLDER = Path("studies")
"""The folder for studies, in the working folder."""


def default_folder(target: str) -> Path:
    """Return the default folder of a study."""
    name = slug(Path(target).name.removesuffix(".py"))
    return FOLDER / f"{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


@contextmanager
def own_folder(folder: Path) -> Iterator[Path]:
    """Make a folder that no other study has, see `claim_folder`; remove it if it is empty at the end."""
    missing = [path for path in folder.parents if not path.exists()]
    claimed = claim_folder(folder)
    try:
        yield claimed
    finally:
        _remove_empty([claimed, *missing])


def refuse_taken(folder: Path) -> None:
    """Refuse a folder that contains files, or that cannot be created; nothing is created.

    Raises:
        UsageError: the folder cannot be used.
    """
    try:
        refuse_unwritable("--out", folder)
        taken = next(folder.iterdir(), None) if folder.exists() else None
    except OSError as error:
        raise _unusable(folder, error) from None
    if taken is not None:
        raise UsageError(f"--out {folder} contains {taken.name}; give a folder without files.")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Create the folder of a study; if it is still empty at the end, it is removed.

    Raises:
        UsageError: the folder contains files, or cannot be created.
    """
    refuse_taken(folder)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from None
    try:
        yield folder
    finally:
        _remove_empty(made)


def _remove_empty(folders: Iterable[Path]) -> None:
    with suppress(OSError):  # rmdir fails at the first folder that is not empty
        for path in folders:
            path.rmdir()


def _unusable(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"--out {folder} cannot be used ({error.strerror}); give another folder.")


def finish(
    frame: Frame,
    trials: Sequence[Trial],
    runner: Runner,
    *,
    command: Sequence[str] | None = None,
    continues: bool = False,
) -> tuple[Study, int]:
    """Execute runs, write their study, and return it with the exit code, which is 2 if it cannot be written.

    Ctrl-C and SIGTERM end the present run; the study of the runs before it is still written, even after
    further signals. If no run has ended, nothing is kept. `command` has requested the runs, if this one has
    not, and `continues` is whether they continue after this command has ended.

    Raises:
        UsageError: the runs cannot be executed here.
        KeyboardInterrupt: it was interrupted before the first run had ended.
    """
    outcomes: list[Outcome] = []
    ended = 0
    request = frame.request
    each = f"{request.steps} steps each, after {request.warm_up} warm-up steps"
    inform(f"{in_words(request)}: {counted(len(trials), 'run')}, {each}")
    with held():  # signals wait, so that measurements are written whenever and however often they come
        try:
            with interruptible(), _progress(len(trials)) as begin:
                for outcome in runner.run(trials, begin):
                    outcomes.append(outcome)
                    why = _reason(outcome, request.folder) if outcome.error else _result(trials, outcomes)
                    (log if outcome.error else inform)(f"{outcome.trial.in_words()}: {why}")
        except KeyboardInterrupt:
            if not outcomes and not continues:
                _remove(trials)
                log("interrupted before the first run had ended; nothing is kept.")
                raise
            ended = INTERRUPTED
        except OSError:  # messages cannot be printed, because the terminal is gone
            _store(collect_study(frame, trials, outcomes, command=command), request.folder)
            raise
        study = collect_study(frame, trials, outcomes, command=command)
        try:
            where = f"study: {request.folder}, page: {_store(study, request.folder)}"
        except UsageError as error:  # for instance on a full disk; the study can still be printed
            where, ended = f"error: {error} The study is only printed.", error.exit_code
    if ended == INTERRUPTED:
        log(f"interrupted; {len(outcomes)} of {counted(len(trials), 'run')} executed.")
    log(where)
    return study, ended or int(any(outcome.error for outcome in outcomes))


def _remove(trials: Sequence[Trial]) -> None:
    """Remove the folders of runs."""
    for folder in {trial.folder.parent for trial in trials}:
        shutil.rmtree(folder, ignore_errors=True)


def _reason(outcome: Outcome, folder: Path) -> str:
    """Return why a run failed, and the path of its log."""
    why = outcome.error.removesuffix(".")
    return f"{why}. Its log: {log_of(outcome.trial, folder)}" if outcome.trial.log.exists() else f"{why}."


def _result(trials: Sequence[Trial], outcomes: Sequence[Outcome]) -> str:
    """Return the rate of the last run and, if runs follow each other, the estimated time of the rest."""
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


def _store(study: Study, folder: Path) -> Path:
    """Write a study and its page; return the page's path."""
    write_study(folder / NAME, study)
    return write_study_page(study, folder / PAGE)


@contextmanager
def _progress(total: int) -> Iterator[Report]:
    """Yield a function to call before each run; it moves a bar on a terminal, and prints lines elsewhere."""
    with progress_bar(total, shown=True) as advance:
        begun = 0

        def begin(what: str) -> None:
            nonlocal begun
            begun += 1
            advance(what)
            if not sys.stderr.isatty():
                inform(f"run {begun} of {total}: {what}")

        yield begin
