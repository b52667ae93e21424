"""Compared runs belong to one training, and other differences are noted."""

import re
from dataclasses import replace

import pytest

from samestep.base.errors import UsageError
from samestep.scaling.report.sources import study_of
from support.clocked_runs import OWN, clocked, write
from support.run_folders import CONFIG, scaled_folder


def of_scripts(at, *argvs, kind="native", **more):
    """Return clock folders of a program on 1, 2, 4, ... workers with these arguments."""
    folders = []
    for number, argv in enumerate(argvs):
        workers = 2**number
        own = {name: seconds / workers for name, seconds in OWN.items()}
        folders.append(at / f"c{workers}")
        run = clocked(workers, own=own, kind=kind, argv=argv.split(), **more)
        write(folders[-1], replace(run, ranks=run.ranks[:1]) if kind == "once" else run)
    return folders


def of_recipes(at, *flags):
    argvs = [f"/bin/samestep train {text} --clock=c{number}" for number, text in enumerate(flags)]
    return of_scripts(at, *argvs, kind="recipe")


def of_settings(at, *changes):
    """Return run folders with these additional settings."""
    folders = []
    for number, more in enumerate(changes):
        workers = 2**number
        folders.append(scaled_folder(at / f"w{workers}", workers=workers, step_s=0.012 / workers + 0.002))
        (folders[-1] / "config.toml").write_text(CONFIG + more)
    return folders


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (
            lambda at: of_scripts(at, "mnist.py", "cifar.py --model x"),
            ("c1", "mnist.py", "c2", "cifar.py"),
        ),
        (
            lambda at: of_scripts(at, "a/one/__main__.py", "a/two/__main__.py"),
            ("c1", "one", "c2", "two"),
        ),
        (
            lambda at: of_recipes(at, "digits", "-n 2 mnist"),
            ("c1", "recipe digits", "c2", "recipe mnist"),
        ),
        (
            lambda at: of_recipes(at, "digits", "digits --model resnet9"),
            ("c1", "recipe digits", "c2", "recipe digits --model resnet9"),
        ),
        (
            lambda at: of_settings(at, 'model = "convnet"\n', 'model = "resnet9"\n'),
            ("w1", "recipe digits --model convnet", "w2", "recipe digits --model resnet9"),
        ),
        (
            lambda at: [*of_recipes(at, "mnist"), *of_settings(at, "", "")],
            ("c1", "recipe mnist", "w1", "recipe digits"),
        ),
    ],
)
def test_several_trainings_are_no_study(tmp_path, make, names):
    with pytest.raises(UsageError, match=".*".join(rf"\b{re.escape(name)}\b" for name in names)):
        study_of(make(tmp_path))


@pytest.mark.parametrize(
    ("make", "target", "differences"),
    [
        (
            lambda at: of_scripts(at, "t.py --lr 0.1 --seed 3", "t.py --lr=0.1 --seed 3"),
            "t.py --lr 0.1 --seed 3",
            "",
        ),
        (lambda at: of_scripts(at, "t.py 64", "t.py 32", "t.py 16"), "t.py ...", ""),
        (lambda at: of_scripts(at, "t.py -b 32 x", "t.py -b 64 x"), "t.py -b ... x", ""),
        (
            lambda at: of_scripts(at, "t.py --lr 0.1", "t.py --lr 0.4 --fast"),
            "t.py --lr ...",
            "--lr: 0.1 at 1 worker, 0.4 at 2 workers; --fast: none at 1 worker, given at 2 workers",
        ),
        (lambda at: of_scripts(at, "t.py"), "", ""),
        (lambda at: of_recipes(at, "digits -n 1", "digits"), "recipe digits", ""),
        (
            lambda at: of_recipes(at, "digits", "digits --precision bf16"),
            "recipe digits",
            "--precision: none at 1 worker, bf16 at 2 workers",
        ),
        (
            lambda at: of_settings(at, 'precision = "fp32"\nseed = 0\n', 'precision = "bf16"\nseed = 1\n'),
            "recipe digits",
            "--precision: fp32 at 1 worker, bf16 at 2 workers",
        ),
        (lambda at: [*of_recipes(at, "digits"), *of_settings(at, "", "")], "recipe digits", ""),
    ],
)
def test_settings_that_differ_out_of_proportion_are_noted(tmp_path, make, target, differences):
    folders = make(tmp_path)
    if len(folders) == 1:  # a run without a record of its arguments
        write(tmp_path / "more", clocked(2))
        folders, target = [*folders, tmp_path / "more"], "t.py"

    found = study_of(folders)

    notes = [one.text for one in found.notes if re.search(r"--\w+: ", one.text)]
    assert found.target == target
    assert [differences in note for note in notes] == ([True] if differences else [])


def test_the_device_of_a_run_folder_is_a_name_or_a_kind(tmp_path):
    folders = of_settings(tmp_path, "", "")
    text = (folders[0] / "sessions.jsonl").read_text()
    (folders[0] / "sessions.jsonl").write_text(text.replace('"device": "cpu"', '"device": "NVIDIA H200"'))

    study = study_of(folders)

    assert study.points[0].device == "cuda"
    assert study.machine["devices"] == ["NVIDIA H200"]


def test_one_worker_with_the_cores_of_several_is_no_baseline_of_efficiency(tmp_path):
    """Only this finds workers that lose nothing, and are said to be half as efficient."""
    rates = {"whole": (1, 2), "each": (1, 1), "two": (2, 1)}
    for name, (workers, threads) in rates.items():
        own = {phase: seconds / (workers * threads) for phase, seconds in OWN.items()}
        run = clocked(workers, own=own)
        for rank in run.ranks:
            rank.header["threads"] = threads
        write(tmp_path / name, run)

    like_each = study_of([tmp_path / name for name in rates])
    assert [(point.workers, round(point.efficiency, 2)) for point in like_each.points] == [(1, 1.0), (2, 1.0)]
    assert [point.cores_of for point in like_each.one_process] == [2]
    without = study_of([tmp_path / "whole", tmp_path / "two"])
    assert "threads-differ" in {note.code for note in without.notes}
    assert "threads-differ" not in {note.code for note in like_each.notes}
