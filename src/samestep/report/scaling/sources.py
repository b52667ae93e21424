"""Where a study comes from: its own file, run folders of several numbers of workers, or a table of times."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from samestep.base.errors import UsageError
from samestep.base.record import provenance
from samestep.report.read import read_run
from samestep.report.scaling.one_training import differences, refuse_several, target
from samestep.report.scaling.run_steps import WARM_UP, measured_run
from samestep.report.scaling.times_csv import read_times
from samestep.scaling.conclude import conclude, with_notes
from samestep.scaling.crowding import is_oversubscribed
from samestep.scaling.files import NAME, read_study
from samestep.scaling.measured import measured
from samestep.scaling.notes import note, notes_of_runs
from samestep.scaling.provenance import launchers, machine, recipe
from samestep.scaling.rank_files import Run, read_ranks
from samestep.scaling.study import Study
from samestep.scaling.times import UNIT, Time, from_times, has_two_bases
from samestep.scaling.words import counted


def study_of(paths: Sequence[Path], *, bar: float | None = None) -> Study:
    """Return the study that `paths` hold.

    Args:
        paths: one ``study.json`` or its folder, one table of times, or folders of runs.
        bar: the efficiency from which on workers are worth it; None for that of the study, if it has one.

    Raises:
        UsageError: they hold none, or runs of several trainings; says which of them, and the line.
    """
    if len(paths) == 1 and is_study(paths[0]):
        study = read_study(paths[0])
        return study if bar is None else conclude(study, bar)
    if len(paths) == 1 and not paths[0].is_dir():
        return conclude(_of_times(paths[0]), bar)
    return conclude(_of_runs(paths), bar)


def is_about_scaling(paths: Iterable[Path]) -> bool:
    """Return whether `paths` are nothing but files, folders of studies, and runs with a step clock."""
    return all(is_study(path) or _is_table(path) or _is_clocked(path) for path in paths)


def is_study(path: Path) -> bool:
    """Return whether a study is at rest at `path`."""
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
    return with_notes(study, [note("whole-runs-only", _of_what(times))])


def _of_what(times: Sequence[Time]) -> str:
    """Return which work the runs are taken to have done."""
    if any(time.is_weak for time in times):
        work = "did the same work (strong), or as much on each worker as the fewest workers did (weak)"
    else:
        work = "did the same work; a third column, scaling, may say weak"
    said = f"Only the seconds of whole runs are known. They are taken for runs that {work}."
    if has_two_bases(times):
        said += (
            " The fewest workers have strong runs and weak ones, and each mode is against its own: rates of "
            "the two do not compare."
        )
    return said


def _of_runs(paths: Sequence[Path]) -> Study:
    _refuse_twice(paths)
    runs, made = [_run(path) for path in paths], provenance()
    refuse_several(paths, runs)
    counts = sorted({run.workers for run in runs})
    if len(counts) < 2:
        raise UsageError(
            f"all runs are of {counted(counts[0])}: for a speedup there must be runs of another number too."
        )
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
    called = [note("settings-differ", words) for words in differences(runs)]
    folders = [note("run-folder-steps", words) for words in _of_folders(paths)]
    return with_notes(study, [*called, *folders, *notes_of_runs(runs)])


def _refuse_twice(paths: Sequence[Path]) -> None:
    """Refuse one folder by two names: it would count as two repeats that agree exactly."""
    found: dict[Path, Path] = {}
    for path in paths:
        folder = path.resolve()
        if folder in found:
            raise UsageError(f"{path} is {found[folder]} again, and no repeat of it: give each run once.")
        found[folder] = path


def _run(path: Path) -> Run:
    if _is_clocked(path):
        ranks = read_ranks(path)
        return Run(ranks=ranks, oversubscribed=is_oversubscribed([rank.header for rank in ranks]))
    if path.is_file():
        raise UsageError(f"{path} is a file: give one study or one table of times alone, or folders of runs.")
    return measured_run(read_run(path))


def _of_folders(paths: Sequence[Path]) -> list[str]:
    """Return which steps count of run folders: what a run itself tells counts others too."""
    if all(_is_clocked(path) for path in paths):
        return []
    said = (
        "The step of a run folder is the mean of all ranks and of all steps since its last start but the "
        f"first {WARM_UP}; what the run itself said counts others too, and a median is another figure."
    )
    return [said]
