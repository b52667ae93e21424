"""Collects the results of runs into a study."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from samestep.base.record import provenance
from samestep.base.units import counted
from samestep.studies.scaling.analysis.notes import notes_of_runs
from samestep.studies.scaling.analysis.point_text import amount
from samestep.studies.scaling.analysis.points import measured
from samestep.studies.scaling.analysis.rank_files import (
    Run,
    is_oversubscribed,
    launchers,
    machine,
    read_ranks,
    recipe,
)
from samestep.studies.scaling.analysis.statements import note
from samestep.studies.scaling.analysis.study import Finding, Point, Study
from samestep.studies.scaling.analysis.verdict import conclude
from samestep.studies.scaling.sweep.host_load import load_notes
from samestep.studies.scaling.sweep.plan import Request
from samestep.studies.scaling.sweep.trial import Outcome, Trial

_GIT_S = 20.0  # the timeout of git, which checks all files of a repository
_MEANING = {"strong": "the global batch is constant", "weak": "the batch of each worker is constant"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The facts of a study that are known before it is measured."""

    request: Request  # the requested study
    bar: float | None = None  # the efficiency of ``--worth``; None if none was requested
    places: int  # the number of workers that can compute at the same time
    source: Mapping[str, str] = field(default_factory=dict)  # folder and commit of a script
    notes: tuple[str, ...] = ()  # on runs in separate jobs


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
        one_process=measured(of_variants, one_process=True),
    )
    made = [
        *(Finding("note", "separate-jobs", words) for words in frame.notes),
        *_failures(outcomes),
        *_not_executed(trials, outcomes),
        *_short(frame.request, runs),
        *load_notes([one.background for one in outcomes if one.background]),
    ]
    study = conclude(study.with_notes(made), frame.bar)
    return study.with_notes([*notes_of_runs(runs), *_mode_notes(frame.request, good, study.points)])


def source_of(script: Path) -> dict[str, str]:
    """Return the folder of a script and, if git tracks the script, its commit.

    The commit ends in ``-dirty`` if tracked files were changed. Nothing in the repository is written or
    locked.
    """
    folder = script.absolute().parent
    source = {"folder": str(folder)}
    if _git(folder, "ls-files", "--error-unmatch", "--", script.name):
        commit = _git(folder, "rev-parse", "--verify", "--quiet", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no") if commit else None
        if changed is not None:
            source["commit"] = f"{commit}-dirty" if changed else f"{commit}"
    return source


def _git(folder: Path, *words: str) -> str | None:
    """Return the output of git; None if it fails, empty if there is no git."""
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return None if done.returncode else done.stdout.decode(errors="replace").strip()


def in_words(request: Request) -> str:
    """Return the target of a study with its arguments."""
    what = "recipe " if request.kind == "recipe" else "-m " if request.kind == "module" else ""
    return " ".join((what + request.target, *request.arguments))


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
        "compared": [one.name for one in request.variants if one.name],
        "launchers": launchers(runs),
        **source,
        "recipe": recipe(runs),
    }
    return {name: value for name, value in settings.items() if value not in ("", [], {})}


def _failures(outcomes: Sequence[Outcome]) -> Iterator[Finding]:
    for outcome in (one for one in outcomes if one.error):
        trial, code = outcome.trial, outcome.exit_code
        yield note(
            "run-empty" if code == 0 else "run-failed",
            [trial.workers],
            run=trial.in_words(),
            code=f" with exit code {code}" if code else "",
            error=outcome.error.removesuffix("."),
            log=f" Its log: {log_of(trial, Path())}." if trial.log.exists() else "",
        )


def _not_executed(trials: Sequence[Trial], outcomes: Sequence[Outcome]) -> Iterator[Finding]:
    """Yield a note on runs that were not executed, without the repeats of failed ones."""
    ran = {outcome.trial.number for outcome in outcomes}
    failed = {outcome.trial.case for outcome in outcomes if outcome.error}
    left = [trial for trial in trials if trial.number not in ran and trial.case not in failed]
    if left:
        yield note("interrupted", left=len(left), runs=counted(len(trials), "run"))


def _short(request: Request, runs: Sequence[Run]) -> Iterator[Finding]:
    """Yield a note on trainings that ended before all steps were measured."""
    steps: dict[int, int] = {}
    for run in runs:
        made = min(len(rank.steps) for rank in run.ranks)
        steps[run.workers] = min(made, steps.get(run.workers, made))
    short = {workers: count for workers, count in sorted(steps.items()) if count < request.steps}
    if short:
        counts = ", ".join(f"{count} on {counted(workers, 'worker')}" for workers, count in short.items())
        yield note("ended-early", list(short), steps=request.steps, counts=counts)


def _mode_notes(request: Request, trials: Sequence[Trial], points: Sequence[Point]) -> Iterator[Finding]:
    """Yield notes on modes that were requested with ``--scaling`` but not measured by `trials`."""
    smallest = min((point.workers for point in points), default=0)
    measured = {(point.workers, point.variant, point.mode) for point in points}
    requested = {
        (trial.workers, trial.variant, mode)
        for trial in trials
        for mode in trial.modes
        if trial.workers > smallest
    }
    for mode, meaning in _MEANING.items():
        missing = sorted(one for one in requested - measured if one[2] == mode)
        if not missing:
            continue
        workers, variant, _ = missing[0]
        others = [point for point in points if (point.workers, point.variant) == (workers, variant)]
        base = min((one for one in points if one.variant == variant), key=lambda one: one.workers)
        sizes = {point.workers: point.global_batch for point in [base, *others] if point.global_batch}
        batches = ", ".join(f"{amount(batch)} on {count}" for count, batch in sizes.items())
        found = others[0].mode if others else "neither"
        if request.scaling != "auto":
            facts = {"meaning": meaning, "batches": batches, "found": found}
            yield note("other-mode", [base.workers, workers], mode=mode.capitalize(), **facts)
        if mode == "strong" and found == "weak" and request.kind != "recipe":
            yield note("strong-template", template=f"{{{base.global_batch:.0f}/n}}")
