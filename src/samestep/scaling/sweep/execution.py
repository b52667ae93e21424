"""Executes the runs of a scaling study, collects their results, and writes the study, also if interrupted."""

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from samestep.base.console import inform, log, progress_bar
from samestep.base.errors import INTERRUPTED, UsageError
from samestep.base.folders import claim_folder, refuse_unwritable
from samestep.base.record import printable, provenance
from samestep.base.signals import held, interruptible
from samestep.base.units import counted, seconds_text
from samestep.report.run_page import NAME as PAGE
from samestep.scaling.analysis.points import amount, measured
from samestep.scaling.analysis.runs import Run, is_oversubscribed, launchers, machine, read_ranks, recipe
from samestep.scaling.analysis.study import NAME, Note, Point, Study, write_study
from samestep.scaling.analysis.verdict import conclude
from samestep.scaling.report.page import write_study_page
from samestep.scaling.sweep.plan import Request
from samestep.scaling.sweep.trial import Outcome, Report, Runner, Trial, load_notes
from samestep.submit.shell import slug

FOLDER = Path("studies")
"""The folder for studies, in the working folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The facts of a study that are known before it is measured."""

    request: Request  # the requested study
    bar: float | None = None  # the efficiency of ``--worth``; None if none was requested
    places: int  # the number of workers that can compute at the same time
    source: Mapping[str, str] = field(default_factory=dict)  # folder and commit of a script
    notes: tuple[str, ...] = ()  # on runs in separate jobs


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
                message = "interrupted before the first run had ended; nothing is kept."
                raise KeyboardInterrupt(message) from None
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
    rate = f"{amount(last.samples_per_second)} samples/s"
    took = [outcome.seconds for outcome in outcomes if outcome.seconds is not None]
    if last.seconds is None:
        return rate
    ran = {outcome.trial.number for outcome in outcomes}
    failed = {outcome.trial.case for outcome in outcomes if outcome.error}
    left = sum(trial.number not in ran and trial.case not in failed for trial in trials)
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

        def begin(description: str) -> None:
            nonlocal begun
            begun += 1
            advance(description)
            if not sys.stderr.isatty():
                inform(f"run {begun} of {total}: {description}")

        yield begin


def collect_study(
    frame: Frame,
    trials: Sequence[Trial],
    outcomes: Sequence[Outcome],
    *,
    command: Sequence[str] | None = None,
) -> Study:
    """Return the study of the planned runs that have a result; notes name the others, and why they have none.

    `command` has requested them, if the command of this process has not.
    """
    names = [variant.name for variant in frame.request.variants]
    good = sorted(
        (outcome.trial for outcome in outcomes if not outcome.error),
        key=lambda trial: (names.index(trial.variant), trial.workers, trial.number),
    )
    runs = [_run(trial, frame.places) for trial in good]
    of_variants = [
        replace(run, variant=name)
        for trial, run in zip(good, runs, strict=True)
        for name in (trial.variant, *trial.also)
    ]
    of_variants.sort(key=lambda run: (names.index(run.variant), run.workers))
    this = provenance()
    study = Study(
        target=in_words(frame.request),
        command=tuple(command or this["command"]),
        created=this["created"],
        machine=machine(runs),
        settings=_settings(frame.request, runs, frame.source),
        points=measured(of_variants),
        one_process=measured(of_variants, one_process=True),
    )
    made = [
        *(Note("separate-jobs", text) for text in frame.notes),
        *_failures(outcomes),
        *_not_executed(trials, outcomes),
        *_short(frame.request, runs),
        *load_notes([outcome.background for outcome in outcomes if outcome.background]),
    ]
    study = conclude(study.with_notes(made), frame.bar)
    return study.with_notes(_mode_notes(frame.request, good, study.points))


def in_words(request: Request) -> str:
    """Return the target of a study with its arguments."""
    prefix = "recipe " if request.kind == "recipe" else "-m " if request.kind == "module" else ""
    return printable(" ".join((prefix + request.target, *request.arguments)))


def log_of(trial: Trial, folder: Path) -> Path:
    """Return the path of a run's log, relative to the same place as `folder`, the folder of the study."""
    return folder / trial.log.relative_to(trial.folder.parents[1])


def _run(trial: Trial, places: int) -> Run:
    ranks = read_ranks(trial.clock)
    headers = [rank.header for rank in ranks]
    # The files of workers on CPUs have all that is needed; not all accelerators have an identifier.
    on_cpu = all(header.get("device", "cpu") == "cpu" for header in headers)
    oversubscribed = is_oversubscribed(headers) or (not on_cpu and trial.workers > places)
    return Run(ranks=ranks, variant=trial.variant, cores_of=trial.cores_of, oversubscribed=oversubscribed)


def _settings(request: Request, runs: Sequence[Run], source: Mapping[str, str]) -> dict[str, Any]:
    settings = {
        "steps": request.steps,
        "warm_up": request.warm_up,
        "repeats": request.repeats,
        "mode": request.scaling,
        "seed": request.seed,
        "flags": " ".join(request.flags),
        "compared": [variant.name for variant in request.variants if variant.name],
        "launchers": launchers(runs),
        **source,
        "recipe": recipe(runs),
    }
    return {name: value for name, value in settings.items() if value not in ("", [], {})}


def _failures(outcomes: Sequence[Outcome]) -> Iterator[Note]:
    for outcome in (outcome for outcome in outcomes if outcome.error):
        trial, code = outcome.trial, outcome.exit_code
        with_code = "" if outcome.error.startswith("exit code") else f" with exit code {code}"
        failed = "has no result" if code == 0 else f"failed{with_code}" if code else "failed"
        log = f" Its log: {log_of(trial, Path())}." if trial.log.exists() else ""
        text = f"{trial.in_words()} {failed}: {outcome.error.removesuffix('.')}.{log}"
        yield Note("run-empty" if code == 0 else "run-failed", text, (trial.workers,))


def _not_executed(trials: Sequence[Trial], outcomes: Sequence[Outcome]) -> Iterator[Note]:
    """Yield a note on runs that were not executed, without the repeats of failed ones."""
    ran = {outcome.trial.number for outcome in outcomes}
    failed = {outcome.trial.case for outcome in outcomes if outcome.error}
    left = [trial for trial in trials if trial.number not in ran and trial.case not in failed]
    if left:
        text = f"Interrupted before {len(left)} of {counted(len(trials), 'run')}."
        yield Note("interrupted", text)


def _short(request: Request, runs: Sequence[Run]) -> Iterator[Note]:
    """Yield a note on trainings that ended before all steps were measured."""
    steps: dict[int, int] = {}
    for run in runs:
        made = min(len(rank.steps) for rank in run.ranks)
        steps[run.workers] = min(made, steps.get(run.workers, made))
    short = {workers: count for workers, count in sorted(steps.items()) if count < request.steps}
    if short:
        counts = ", ".join(f"{count} on {counted(workers, 'worker')}" for workers, count in short.items())
        text = f"The training ended before {request.steps} steps were measured: {counts}."
        yield Note("ended-early", text, tuple(short))


def _mode_notes(request: Request, trials: Sequence[Trial], points: Sequence[Point]) -> Iterator[Note]:
    """Yield a note on each mode that was requested with ``--scaling`` but not measured by `trials`."""
    smallest = min((point.workers for point in points), default=0)
    measured = {(point.workers, point.variant, point.mode) for point in points}
    requested = {
        (trial.workers, trial.variant, mode)
        for trial in trials
        for mode in trial.modes
        if trial.workers > smallest and request.scaling != "auto"
    }
    for mode in ("strong", "weak"):
        missing = sorted({workers for workers, _, of in requested - measured if of == mode})
        if missing:
            text = f"{mode.capitalize()} scaling was requested, and the measured batches are of another mode."
            yield Note("other-mode", text, tuple(missing))
