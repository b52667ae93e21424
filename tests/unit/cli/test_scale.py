"""`samestep scale`: the kinds of its targets, wrong input before anything runs, and the stored study."""

import json
import re
from pathlib import Path

import pytest
from typer.main import get_command

from samestep.cli import scale
from samestep.cli.main import application, run_command
from samestep.scaling.analysis.study import read_study
from samestep.scaling.sweep import local_runs
from samestep.scaling.sweep.trial import Load, Outcome
from samestep.training.recipes.registry import find
from support.studies import study

SERIAL = "import torch\n"
NATIVE = "import torch.distributed as dist\ndist.init_process_group()\n"
LAUNCHES = "import samestep\nsamestep.spawn(print, 2)\n"
SPAWNS = "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)\n"


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SERIAL)
    monkeypatch.setattr(local_runs, "cpu_share", lambda: Cores(4))
    monkeypatch.setattr(local_runs, "accelerator_count", lambda: 0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return "train.py"


class Cores:
    """The cores of a machine."""

    def __init__(self, usable):
        self.usable, self.limited_by = usable, "the machine itself"


def planned(capsys, *arguments):
    """Return the commands of a study's runs by workers, one worker with the cores of several after others."""
    assert run_command(["scale", "--dry-run", "--repeats=1", *arguments]) == 0
    lines = [line.split(": ", 1)[1].split() for line in capsys.readouterr().out.splitlines()]
    by = {one: re.search(r"-n(\d+)(?:-cores(\d+))?", str(one)) for one in map(tuple, lines)}
    return sorted(lines, key=lambda words: [int(number or 0) for number in by[tuple(words)].groups()])


def refused(capsys, *arguments):
    assert run_command(["scale", *arguments]) == 2
    return capsys.readouterr().err


def test_options_that_scale_does_not_have_are_passed_to_the_script(script, capsys):
    runs = planned(capsys, "train.py", "-n", "1,2", "--lr", "0.1", "--", "--steps", "7")

    assert [one[one.index("train.py") + 1 :] for one in runs] == 3 * [["--lr", "0.1", "--steps", "7"]]
    assert all("--clock-steps=30" in one for one in runs)


@pytest.mark.parametrize(
    ("arguments", "threads"),
    [
        (["train.py", "-n", "1,2"], [2, 4, 2]),
        (["digits", "-n", "1,2"], [2, 4, 2]),
        (["train.py", "-n", "1,2,4"], [1, 2, 4, 1, 1]),
        (["train.py", "-n", "1,3,4", "--threads=1"], [1, 3, 4, 1, 1]),
        (["train.py", "-n", "1,2,8", "--oversubscribe"], [1, 2, 4, 1, 1]),
        (["train.py", "-n", "2,4"], [1, 1]),
    ],
)
def test_one_worker_computes_on_the_cores_of_several_too(script, capsys, arguments, threads):
    runs = planned(capsys, *arguments)
    given = [[word for word in run if word.startswith("--threads=")][-1] for run in runs]

    assert given == [f"--threads={count}" for count in threads]


def test_accelerators_have_no_further_baseline(script, capsys, monkeypatch):
    monkeypatch.setattr(local_runs, "accelerator_count", lambda: 4)

    assert len(planned(capsys, "train.py", "-n", "1,2,4")) == 3
    assert len(planned(capsys, "train.py", "-n", "1,2,4", "--device", "cpu")) == 5


@pytest.mark.parametrize(
    ("arguments", "seen"), [([], ["CUDA_VISIBLE_DEVICES=3", "CUDA_VISIBLE_DEVICES=3,5"]), (["{n}"], [])]
)
def test_the_gpus_that_a_run_sees_are_its_workers_unless_a_flag_gives_their_number(
    script, capsys, monkeypatch, arguments, seen
):
    Path("spawns.py").write_text(SPAWNS)
    monkeypatch.setattr(local_runs, "accelerator_count", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    runs = planned(capsys, "spawns.py", "-n", "1,2", *arguments)

    assert [word for run in runs for word in run if "CUDA" in word] == seen


PARSER = "import argparse\nargparse.ArgumentParser().add_argument('--seed')\n"
MAKER = "import tyro\ntyro.cli(print)\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["train.py", "--seed=1"], "--seed .*train.py and samestep scale"),
        (["train.py", "-n", "1,2", "--seed", "1", "--", "--lr", "1"], "--seed .*train.py"),
        (["-m", "train", "--seed=1"], "samestep scale -n 1,2 -m -- train --seed ..."),
        (["uses.py", "--seed=1"], "--seed .*train.py"),
        (["made.py", "--steps=1"], "--steps .*made.py:2"),
        (["digits", "--seed=1"], "--seed .*samestep train and samestep scale"),
        (["--seed=1", "train.py"], ""),
        (["--steps=1", "made.py", "--lr=1"], ""),
        (["train.py", "--steps=7", "-n", "1,2"], ""),
        (["train.py", "--", "--seed=1"], ""),
        (["--", "train.py", "--seed=1"], ""),
        (["--", "made.py", "--seed=1"], ""),
        (["digits", "--threads=1", "--", "--seed=1"], ""),
    ],
)
def test_an_option_that_the_target_has_too_is_refused_after_it(script, capsys, arguments, named):
    for name, text in {"train": PARSER, "uses": "import train\n", "made": MAKER}.items():
        Path(f"{name}.py").write_text(text)

    assert run_command(["scale", "--dry-run", *arguments]) == (2 if named else 0)
    err = capsys.readouterr().err
    assert re.search(named, err) if named else not err


def test_train_and_scale_share_only_these_options():
    shared = {
        *("--bind", "--hang-timeout", "--oversubscribe", "--threads"),  # passed on
        *("--figures", "--json", "--out", "--quiet", "--workers"),  # of the study, not of a run
    }
    flags = [
        {flag for one in command.params for flag in one.opts if flag.startswith("--")}
        for command in (get_command(application(verb)).commands[verb] for verb in ("scale", "train"))
    ]

    assert set.intersection(*flags) == {*shared, *scale._OF_TRAIN}


def test_all_numbers_of_workers_use_the_same_number_of_threads(script, capsys):
    assert all("--threads=2" in words for words in planned(capsys, "train.py", "-n", "1,2"))
    assert all("--threads=1" in words for words in planned(capsys, "train.py", "-n", "1,2,4"))


def test_a_number_of_threads_in_the_environment_is_kept(script, capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")

    one, all_cores, two = planned(capsys, "train.py")
    assert "--threads" not in str([one, two])
    assert "--threads=4" in all_cores


def test_a_recipe_takes_trains_flags_and_grows_its_batch(script, capsys):
    one, all_cores, two = planned(
        capsys, "digits", "-n", "1,2", "--scaling=weak", "--model=convnet", "--batch-size", "20"
    )

    assert one[3:7] == ["train", "-n", "1", "digits"]
    assert "--model=convnet" in one
    assert one[one.index("--batch-size") + 1] == "20"
    assert all_cores[all_cores.index("--batch-size") + 1] == "20"
    assert "--batch-size=40" in two


def test_the_default_batch_of_a_recipe_grows_too(script, capsys):
    *_, two = planned(capsys, "digits", "-n", "1,2", "--scaling=weak")

    assert [word for word in two if word.startswith("--batch-size=")] == [
        f"--batch-size={2 * find('digits').settings.batch_size}"
    ]


def test_an_efficiency_may_be_in_percent(script, capsys):
    assert planned(capsys, "train.py", "--out=s", "--worth", "70%") == planned(capsys, "train.py", "--out=s")


def test_options_of_a_variant_follow_the_given_ones(script, capsys):
    words = planned(capsys, "digits", "-n", "2", "--sync=ddp", "--compare", "sync=flat,bucketed")

    assert sorted([w for w in line if w.startswith("--sync")] for line in words) == [
        ["--sync=ddp", "--sync=bucketed"],
        ["--sync=ddp", "--sync=flat"],
    ]


def test_threads_of_the_environment_take_cores_too(script, capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")

    assert re.search("2 workers .*4 cores .*4 threads", refused(capsys, "train.py"))
    assert len(planned(capsys, "train.py", "--threads=2")) == 3


def test_compared_variables_of_threads_are_not_overridden(script, capsys):
    arguments = ("train.py", "-n", "2", "--compare", "env:OMP_NUM_THREADS=1,2")
    assert "--threads" not in str(planned(capsys, *arguments))


def test_compared_threads_are_not_given_twice(script, capsys):
    for words in planned(capsys, "train.py", "-n", "2", "--compare", "threads=1,2"):
        assert len([word for word in words if word.startswith("--threads")]) == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["train.py", "-n", "1,8"], "8 workers .*4 cores"),
        (
            ["train.py", "-n", "1,4", "--threads=2"],
            "4 cores .*2 threads",
        ),
        (
            ["train.py", "-n", "1,2,4", "--compare", "threads=1,2"],
            "4 workers .*4 cores .*2 threads",
        ),
        (
            ["train.py", "-n", "1,2", "--compare", "env:OMP_NUM_THREADS=1,4"],
            "2 workers .*4 cores .*4 threads",
        ),
        (["train.py", "-n", "one"], "-n 'one'"),
        (["train.py", "-n", "0,2"], "-n 0,2"),
        (["train.py", "-n", "1,2,1"], "-n 1,2,1 .*--repeats"),
        (["train.py", "--worth=70"], "--worth 70 "),
        (["train.py", "--worth=0.7x"], "--worth 0.7x "),
        (["digits", "--foo", "3"], "samestep train: .*--foo"),
        (["digits", "--epochs=x"], "samestep train: --epochs"),
        (["digits", "--bind=foo"], "--bind 'foo'"),
        (["train.py", "--bind=foo"], "--bind 'foo'"),
        (["train.py", "--short-calls=foo"], "--short-calls 'foo' .*auto, split"),
        (["digits", "--compare", "sync=ddp,bogus"], "--sync 'bogus'"),
        (["digits", "-n", "1,4", "--batch-size=3"], "--batch-size 3"),
        (["train.py", "--scaling=up"], "--scaling 'up' .*auto, strong, weak, both"),
        (["train.py", "-n", "1,3", "--b={64/n}"], "64 .*n = 3"),
        (["--repeat=3", "train.py"], "--repeat\\b"),
        (["torchrun", "train.py"], "torchrun .*--compare launcher="),
        (["launches.py"], "launches.py .*--mode native"),
        (["spawns.py", "--compare", "launcher=samestep,torchrun"], "launcher=torchrun: spawns.py"),
        (["spawns.py", "--submit", "slurm"], "spawns.py .*allocation"),
        (["native.py", "--short-calls=split"], "--short-calls .*native.py .*--mode autopilot"),
        (
            ["train.py", "--mode=native", "--compare=short-calls=auto,split"],
            "--short-calls .*train.py .*--mode autopilot",
        ),
        (["native.py", "--compare", "check-every=0,1"], "--check-every .*native.py .*--mode autopilot"),
        (["nowhere.py"], "nowhere.py "),
        (["letters"], "letters .*digits, mnist"),
        (["digits", "--resume", "runs/a"], "--resume "),
        (["digits", "--clock", "/tmp/q"], "--clock "),
        (["digits", "--", "--clock-steps=3"], "--clock-steps .*--steps"),
        (["digits", "--clock-warm-up", "1"], "--clock-warm-up .*--warm-up"),
        (["digits", "--short-calls=split"], "--short-calls .*digits"),
        (["train.py", "--compare", "sync=ddp,flat"], "--sync .*recipes"),
        (
            ["digits", "--compare", "color=red,blue"],
            "color.*env:NAME",
        ),
        (["digits", "--scaling=weak", "--config=a.toml"], "--scaling weak .*--batch-size"),
    ],
)
def test_wrong_input_is_refused_before_anything_runs(script, capsys, arguments, named):
    Path("launches.py").write_text(LAUNCHES)
    Path("spawns.py").write_text(SPAWNS)
    Path("native.py").write_text(NATIVE)

    assert re.search(named, refused(capsys, *arguments))
    assert not Path("studies").exists()


@pytest.mark.parametrize(
    ("out", "named"),
    [
        ("used", "a.txt"),
        ("used/a.txt", "used/a.txt is a file"),
        ("used/a.txt/study", "used/a.txt is a file"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_by_a_dry_run_too(script, capsys, out, named):
    Path("used").mkdir()
    Path("used/a.txt").write_text("")

    error = refused(capsys, "--dry-run", "train.py", "--out", out)
    assert f"--out {out} " in error
    assert named in error


def test_more_workers_than_cores_can_be_forced(script, capsys):
    assert len(planned(capsys, "train.py", "-n", "1,8", "--oversubscribe")) == 3


def test_the_tasks_of_a_launcher_do_not_scale(script, capsys, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)

    assert "launcher" in refused(capsys, "train.py")


def test_the_charts_of_a_study_are_saved(script, capsys, monkeypatch):
    monkeypatch.setattr(local_runs.LocalRuns, "execute", lambda *_: (study(), 0))

    assert run_command(["scale", "train.py", "-n", "1,2", "--figures", "paper/figures", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["target"] == study().target
    assert "figures: paper/figures, 5 charts" in err
    assert Path("paper/figures/speedup.svg").exists()


class Failing:
    """Executes one run, which fails, beside other programs that keep a core busy."""

    def background_load(self):
        return Load(0.94, 2)

    def run(self, trials, report):
        trials[0].folder.mkdir(parents=True)
        trials[0].log.write_text("no data")
        yield Outcome(trial=trials[0], exit_code=1, error="no data")


def test_paths_of_logs_are_relative_to_the_working_folder_in_messages_and_to_the_study_in_files(
    script, capsys, monkeypatch
):
    monkeypatch.setattr(local_runs, "Local", Failing)
    assert run_command(["scale", script, "-n", "1", "--repeats=1", "--out", "a b/c"]) == 1
    out, err = capsys.readouterr()
    assert "0.9 of 2 processors" in err.splitlines()[0]
    (note,) = read_study(Path("a b/c")).notes
    start, log = note.text.removesuffix(".").split("Its log: ")

    assert Path("a b/c", log).read_text() == "no data"
    assert f"{start}Its log: a b/c/{log}." in out.splitlines()
    assert run_command(["report", "a b/c/study.json"]) == 0
    assert f"{start}Its log: a b/c/{log}." in capsys.readouterr().out.splitlines()
    assert f"Its log: {log}." in Path("a b/c/report.html").read_text()
