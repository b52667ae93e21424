"""From what the runs left behind to a study."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from samestep.base.record import provenance
from samestep.base.units import counted
from samestep.scaling.conclude import conclude
from samestep.scaling.crowding import is_crowded
from samestep.scaling.logs import named
from samestep.scaling.measured import measured
from samestep.scaling.notes import notes_of_runs
from samestep.scaling.provenance import launchers, machine, recipe
from samestep.scaling.rank_files import Run, read_ranks
from samestep.scaling.study import Study
from samestep.trials.doubts import doubts
from samestep.trials.load import note
from samestep.trials.plan import Request
from samestep.trials.trial import Outcome, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What a study is of, beside what was measured.

    Args:
        request: what was asked for.
        bar: the efficiency from which on workers are worth it; None where nobody said.
        places: workers that can compute at the same time.
        source: of a script: its folder, and its commit.
        notes: what is to be said of how the runs were made.
    """

    request: Request
    bar: float | None = None
    places: int
    source: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def collected(
    frame: Frame,
    trials: Sequence[Trial],
    outcomes: Sequence[Outcome],
    *,
    command: Sequence[str] | None = None,
) -> Study:
    """Return the study of the runs that gave something; the notes say which did not, and why.

    Args:
        frame: what the study is of.
        trials: all that were planned.
        outcomes: of those that ran.
        command: that asked for them, if not this one.
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
    told = provenance()
    study = Study(
        target=in_words(frame.request),
        command=tuple(command or told["command"]),
        created=told["created"],
        machine=machine(runs),
        settings=_settings(frame.request, runs, frame.source),
        points=measured(of_variants),
        notes=(
            *frame.notes,
            *_failures(outcomes),
            *_left_out(trials, outcomes),
            *_short(frame.request, runs),
            *filter(None, [note([one.others for one in outcomes if one.others])]),
        ),
    )
    study = conclude(study, frame.bar)
    return replace(
        study, notes=(*study.notes, *notes_of_runs(runs), *doubts(frame.request, good, study.points))
    )


def _run(trial: Trial, places: int) -> Run:
    ranks = read_ranks(trial.clock)
    headers = [rank.header for rank in ranks]
    # On processors the workers tell; not all accelerators have a name of their own.
    on_cpu = all(header.get("device", "cpu") == "cpu" for header in headers)
    crowded = is_crowded(headers) or (not on_cpu and trial.workers > places)
    return Run(ranks=ranks, variant=trial.variant, oversubscribed=crowded)


def in_words(request: Request) -> str:
    """Return what is measured, as somebody would write it."""
    what = "recipe " if request.kind == "recipe" else "-m " if request.kind == "module" else ""
    return " ".join((what + request.target, *request.arguments))


def _settings(request: Request, runs: Sequence[Run], source: Mapping[str, str]) -> dict[str, Any]:
    said = {
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
    return {name: value for name, value in said.items() if value not in ("", [], {})}


def log_of(trial: Trial, folder: Path) -> Path:
    """Return where what a run printed is, as somebody finds it who was told of the study's folder."""
    return folder / trial.log.relative_to(trial.folder.parents[1])


def _failures(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        if outcome.error:
            code = "" if outcome.exit_code is None else f" with exit code {outcome.exit_code}"
            how = f"failed{code}" if outcome.exit_code != 0 else "gave nothing"
            log = f" {named(log_of(outcome.trial, Path()))}" if outcome.trial.log.exists() else ""
            yield f"{outcome.trial.in_words()} {how}: {outcome.error.removesuffix('.')}.{log}"


def _left_out(trials: Sequence[Trial], outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Say what did not run and was not the repeat of what had failed."""
    ran = {outcome.trial.number for outcome in outcomes}
    failed = {outcome.trial.case for outcome in outcomes if outcome.error}
    left = [trial for trial in trials if trial.number not in ran and trial.case not in failed]
    if left:
        verb = "was" if len(left) == 1 else "were"
        yield f"Ended by hand: {len(left)} of {counted(len(trials), 'run')} {verb} not made."


def _short(request: Request, runs: Sequence[Run]) -> Iterator[str]:
    """Say where a script ended before its steps were made."""
    steps: dict[int, int] = {}
    for run in runs:
        made = min(len(rank.steps) for rank in run.ranks)
        steps[run.workers] = min(made, steps.get(run.workers, made))
    short = [
        f"{count} on {counted(workers, 'worker')}"
        for workers, count in sorted(steps.items())
        if count < request.steps
    ]
    if short:
        yield f"The training ended before {request.steps} steps were measured: {', '.join(short)}."
