"""Loads a study from its own file, from runs on several numbers of workers, or from a table of times."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from samestep.base.errors import UsageError
from samestep.base.record import provenance
from samestep.studies.report.read_run import read_run
from samestep.studies.scaling.analysis.notes import notes_of_runs
from samestep.studies.scaling.analysis.point_text import counted
from samestep.studies.scaling.analysis.points import UNIT, from_times, has_two_bases, measured
from samestep.studies.scaling.analysis.rank_files import (
    Run,
    is_oversubscribed,
    launchers,
    machine,
    read_ranks,
    recipe,
)
from samestep.studies.scaling.analysis.statements import note
from samestep.studies.scaling.analysis.study import Study
from samestep.studies.scaling.analysis.study_file import NAME, read_study
from samestep.studies.scaling.analysis.verdict import conclude
from samestep.studies.scaling.report.one_training import check_same_training, differences, target
from samestep.studies.scaling.report.run_steps import WARM_UP, measured_run
from samestep.studies.scaling.report.times_csv import read_times


def study_of(paths: Sequence[Path], *, bar: float | None = None) -> Study:
    """Return the study in `paths`.

    Args:
        paths: one ``study.json`` or its folder, one table of times, or folders of runs.
        bar: least efficiency of a worthwhile number of workers; None for the study's own, if it has one.

    Raises:
        UsageError: there is no study, a file is damaged, or runs belong to several trainings.
    """
    if len(paths) == 1 and is_study(paths[0]):
        study = read_study(paths[0])
        return study if bar is None else conclude(study, bar)
    if len(paths) == 1 and not paths[0].is_dir():
        return conclude(_of_times(paths[0]), bar)
    return conclude(_of_runs(paths), bar)


def is_about_scaling(paths: Iterable[Path]) -> bool:
    """Return whether all `paths` are files, folders of studies, or runs with a step clock."""
    return all(is_study(path) or _is_table(path) or _is_clocked(path) for path in paths)


def is_study(path: Path) -> bool:
    """Return whether `path` is a study file or a folder with one."""
    return (path / NAME).is_file() if path.is_dir() else path.suffix == ".json"


def _is_table(path: Path) -> bool:
    return path.is_file() or path.suffix == ".csv"


def _is_clocked(path: Path) -> bool:
    return (path / "rank-0.jsonl").is_file()


def _of_times(path: Path) -> Study:
    times, made = read_times(path), provenance()
    study = Study(
        target=path.name,
        command=tuple(made["command"]),
        created=made["created"],
        settings={"from": str(path), "runs": len(times)},
        unit=UNIT,
        points=from_times(times),
    )
    work = "done the same work; mark weak scaling in a third column, scaling"
    if any(time.is_weak for time in times):
        work = "done the same work (strong), or the baseline's work per worker (weak)"
    bases = " Strong and weak runs have baselines of their own: do not compare their rates."
    bases = bases if has_two_bases(times) else ""
    return study.with_notes([note("whole-runs-only", work=work, bases=bases)])


def _of_runs(paths: Sequence[Path]) -> Study:
    _refuse_twice(paths)
    runs, made = [_run(path) for path in paths], provenance()
    check_same_training(paths, runs)
    counts = sorted({run.workers for run in runs})
    if len(counts) < 2:
        raise UsageError(f"all runs are on {counted(counts[0])}: give runs on another number of workers too.")
    settings = {
        "from": [str(path) for path in paths],
        "launchers": launchers(runs),
        "recipe": recipe(runs),
    }
    study = Study(
        target=target(runs),
        command=tuple(made["command"]),
        created=made["created"],
        machine=machine(runs),
        settings={name: value for name, value in settings.items() if value},
        points=measured(runs),
    )
    made_notes = [note("settings-differ", settings=found)] if (found := differences(runs)) else []
    if not all(map(_is_clocked, paths)):
        made_notes.append(note("run-folder-steps", warm_up=WARM_UP))
    return study.with_notes([*made_notes, *notes_of_runs(runs)])


def _refuse_twice(paths: Sequence[Path]) -> None:
    """Reject a folder that is given twice, which would count as two equal repeats.

    Raises:
        UsageError: two paths are one folder.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        folder = path.resolve()
        if folder in found:
            raise UsageError(f"{path} is the same folder as {found[folder]}: give each run once.")
        found[folder] = path


def _run(path: Path) -> Run:
    if _is_clocked(path):
        ranks = read_ranks(path)
        return Run(ranks=ranks, oversubscribed=is_oversubscribed([rank.header for rank in ranks]))
    if path.is_file():
        raise UsageError(f"{path} is a file: give one study or one table of times alone, or folders of runs.")
    return measured_run(read_run(path))
