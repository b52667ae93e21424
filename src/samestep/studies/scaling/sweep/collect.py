"""Collects the results of runs into a study."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from samestep.base.record import provenance
from samestep.base.units import counted
from samestep.studies.scaling.analysis.log_paths import log_sentence
from samestep.studies.scaling.analysis.notes import note, notes_of_runs
from samestep.studies.scaling.analysis.oversubscription import is_oversubscribed
from samestep.studies.scaling.analysis.points_from_runs import measured
from samestep.studies.scaling.analysis.provenance import launchers, machine, recipe
from samestep.studies.scaling.analysis.rank_files import Run, read_ranks
from samestep.studies.scaling.analysis.study import Finding, Study
from samestep.studies.scaling.analysis.study_from_points import conclude, with_notes
from samestep.studies.scaling.sweep.host_load import load_words
from samestep.studies.scaling.sweep.mode_check import mode_notes
from samestep.studies.scaling.sweep.plan import Request
from samestep.studies.scaling.sweep.trial import Outcome, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The facts of a study that are known before it is measured.

    Args:
        request: the requested study.
        bar: the efficiency from which on workers are worth it; None if none was requested.
        places: the number of workers that can compute at the same time.
        source: folder and commit of a script.
        notes: on how the runs are executed.
    """

    request: Request
    bar: float | None = None
    places: int
    source: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def collect_study(
    frame: Frame,
    trials: Sequence[Trial],
    outcomes: Sequence[Outcome],
    *,
    command: Sequence[str] | None = None,
) -> Study:
    """Return the study of the runs that have a result; notes name the others, and why they have none.

    Args:
        frame: of the study.
        trials: all planned runs.
        outcomes: of the executed runs.
        command: that requested them, if not the command of this process.
    """
    names = [one.name for one in frame.request.variants]
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
    )
    background = load_words([one.background for one in outcomes if one.background])
    made = [
        *(note("separate-jobs", words) for words in frame.notes),
        *_failures(outcomes),
        *_not_executed(trials, outcomes),
        *_short(frame.request, runs),
        *([note("background-load", background)] if background else []),
    ]
    study = conclude(with_notes(study, made), frame.bar)
    return with_notes(study, [*notes_of_runs(runs), *mode_notes(frame.request, good, study.points)])


def _run(trial: Trial, places: int) -> Run:
    ranks = read_ranks(trial.clock)
    headers = [rank.header for rank in ranks]
    # The files of workers on CPUs have all that is needed; not all accelerators have an identifier.
    on_cpu = all(header.get("device", "cpu") == "cpu" for header in headers)
    oversubscribed = is_oversubscribed(headers) or (not on_cpu and trial.workers > places)
    return Run(ranks=ranks, variant=trial.variant, oversubscribed=oversubscribed)


def in_words(request: Request) -> str:
    """Return the target of a study with its arguments."""
    what = "recipe " if request.kind == "recipe" else "-m " if request.kind == "module" else ""
    return " ".join((what + request.target, *request.arguments))


def _settings(request: Request, runs: Sequence[Run], source: Mapping[str, str]) -> dict[str, Any]:
    settings = {
        "steps": request.steps,
        "warm_up": request.warm_up,
        "repeats": request.repeats,
        "mode": request.scaling,
        "seed": request.seed,
        "flags": " ".join(request.flags),
        "compared": [one.name for one in request.variants if one.name],
        "launchers": launchers(runs),
        **source,
        "recipe": recipe(runs),
    }
    return {name: value for name, value in settings.items() if value not in ("", [], {})}


def log_of(trial: Trial, folder: Path) -> Path:
    """Return the path of a run's log, relative to the same place as `folder`, the folder of the study."""
    return folder / trial.log.relative_to(trial.folder.parents[1])


def _failures(outcomes: Sequence[Outcome]) -> Iterator[Finding]:
    for outcome in outcomes:
        if outcome.error:
            code = "run-empty" if outcome.exit_code == 0 else "run-failed"
            how = f"failed with exit code {outcome.exit_code}" if outcome.exit_code else "failed"
            how = "has no result" if outcome.exit_code == 0 else how
            log = f" {log_sentence(log_of(outcome.trial, Path()))}" if outcome.trial.log.exists() else ""
            words = f"{outcome.trial.in_words()} {how}: {outcome.error.removesuffix('.')}.{log}"
            yield note(code, words, workers=[outcome.trial.workers])


def _not_executed(trials: Sequence[Trial], outcomes: Sequence[Outcome]) -> Iterator[Finding]:
    """Yield a note on runs that were not executed, without the repeats of failed ones."""
    ran = {outcome.trial.number for outcome in outcomes}
    failed = {outcome.trial.case for outcome in outcomes if outcome.error}
    left = [trial for trial in trials if trial.number not in ran and trial.case not in failed]
    if left:
        words = f"Interrupted: {len(left)} of {counted(len(trials), 'run')} were not executed."
        yield note("interrupted", words)


def _short(request: Request, runs: Sequence[Run]) -> Iterator[Finding]:
    """Yield a note on trainings that ended before all steps were measured."""
    steps: dict[int, int] = {}
    for run in runs:
        made = min(len(rank.steps) for rank in run.ranks)
        steps[run.workers] = min(made, steps.get(run.workers, made))
    short = {workers: count for workers, count in sorted(steps.items()) if count < request.steps}
    if short:
        counts = ", ".join(f"{count} on {counted(workers, 'worker')}" for workers, count in short.items())
        words = f"The training ended before {request.steps} steps were measured: {counts}."
        yield note("ended-early", words, workers=list(short))
