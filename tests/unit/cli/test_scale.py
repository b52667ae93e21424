"""`samestep scale`: what it takes for what, what it refuses before anything runs, what it keeps."""

from pathlib import Path

import pytest
from typer.main import get_command

from samestep.cli import scale_target, scale_where
from samestep.cli.main import application, run_command
from samestep.recipes.book import find
from samestep.scaling.files import read_study
from samestep.trials.load import Load
from samestep.trials.trial import Outcome

SERIAL = "import torch\n"
NATIVE = "import torch.distributed as dist\ndist.init_process_group()\n"
SPAWNS = "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)\n"


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SERIAL)
    monkeypatch.setattr(scale_where, "cpu_share", lambda: Cores(4))
    monkeypatch.setattr(scale_where, "accelerator_count", lambda: 0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return "train.py"


class Cores:
    """A machine's."""

    def __init__(self, usable):
        self.usable, self.limited_by = usable, "the machine itself"


def planned(capsys, *arguments):
    """Return the commands that a study would run, in the order of workers."""
    assert run_command(["scale", "--dry-run", "--repeats=1", *arguments]) == 0
    lines = [line.split(": ", 1)[1].split() for line in capsys.readouterr().out.splitlines()]
    return sorted(lines, key=lambda words: int(words[words.index("-n") + 1]))


def refused(capsys, *arguments):
    assert run_command(["scale", *arguments]) == 2
    return capsys.readouterr().err


def test_what_is_no_flag_of_scale_is_the_scripts(script, capsys):
    one, two = planned(capsys, "train.py", "-n", "1,2", "--lr", "0.1", "--", "--steps", "7")

    assert (
        one[one.index("train.py") + 1 :]
        == two[two.index("train.py") + 1 :]
        == ["--lr", "0.1", "--steps", "7"]
    )
    assert "--clock-steps=30" in one


PARSER = "import argparse\nargparse.ArgumentParser().add_argument('--seed')\n"
MAKER = "import tyro\ntyro.cli(print)\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train.py", "--seed=1"], "--seed is a flag of train.py and of samestep scale: whose is it?"),
        (["train.py", "-n", "1,2", "--seed", "1", "--", "--lr", "1"], "--seed is a flag of train.py"),
        (["-m", "train", "--seed=1"], "samestep scale -n 1,2 -m -- train --seed ..."),
        (["uses.py", "--seed=1"], "--seed is a flag of train.py and of"),
        (["made.py", "--steps=1"], "--steps is a flag of samestep scale, and may be one of made.py too"),
        (["digits", "--seed=1"], "--seed is a flag of samestep train and of samestep scale"),
        (["--seed=1", "train.py"], ""),
        (["--steps=1", "made.py", "--lr=1"], ""),
        (["train.py", "--steps=7", "-n", "1,2"], ""),
        (["train.py", "--", "--seed=1"], ""),
        (["--", "train.py", "--seed=1"], ""),
        (["--", "made.py", "--seed=1"], ""),
        (["digits", "--threads=1", "--", "--seed=1"], ""),
    ],
)
def test_a_flag_that_the_target_has_too_is_refused_behind_it(script, capsys, monkeypatch, arguments, said):
    for name, text in {"train": PARSER, "uses": "import train\n", "made": MAKER}.items():
        Path(f"{name}.py").write_text(text)
    monkeypatch.setattr("sys.argv", ["samestep", "scale", "--dry-run", *arguments])

    assert run_command(["scale", "--dry-run", *arguments]) == (2 if said else 0)
    err = capsys.readouterr().err
    assert said in err if said else not err


def test_flags_that_a_recipe_shares_with_scale_are_known():
    shared = {
        *("--algorithm", "--batch-norm", "--bind", "--hang-timeout", "--threads"),  # handed on
        *("--json", "--out"),  # of the study: what a run prints and keeps is nobody's
    }
    flags = [
        {flag for one in command.params for flag in one.opts if flag.startswith("--")}
        for command in (get_command(application(verb)).commands[verb] for verb in ("scale", "train"))
    ]

    assert set.intersection(*flags) == {*shared, *scale_target._OF_TRAIN}


def test_all_numbers_of_workers_compute_with_as_many_threads(script, capsys):
    assert all("--threads=2" in words for words in planned(capsys, "train.py", "-n", "1,2"))
    assert all("--threads=1" in words for words in planned(capsys, "train.py", "-n", "1,2,4"))


def test_a_scripts_own_number_of_threads_is_left_alone(script, capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")

    assert "--threads" not in str(planned(capsys, "train.py"))


def test_a_recipe_takes_trains_flags_and_grows_its_batch(script, capsys):
    one, two = planned(
        capsys, "digits", "-n", "1,2", "--scaling=weak", "--model=convnet", "--batch-size", "20"
    )

    assert one[3:7] == ["train", "-n", "1", "digits"]
    assert "--model=convnet" in one
    assert one[one.index("--batch-size") + 1] == "20"
    assert "--batch-size=40" in two


def test_a_recipes_own_batch_grows_too(script, capsys):
    _, two = planned(capsys, "digits", "-n", "1,2", "--scaling=weak")

    assert [word for word in two if word.startswith("--batch-size=")] == [
        f"--batch-size={2 * find('digits').settings.batch_size}"
    ]


def test_an_efficiency_may_be_in_percent(script, capsys):
    assert planned(capsys, "train.py", "--out=s", "--worth", "70%") == planned(capsys, "train.py", "--out=s")


def test_what_is_compared_goes_behind_what_was_said(script, capsys):
    words = planned(capsys, "digits", "-n", "2", "--sync=ddp", "--compare", "sync=flat,bucketed")

    assert sorted([w for w in line if w.startswith("--sync")] for line in words) == [
        ["--sync=ddp", "--sync=bucketed"],
        ["--sync=ddp", "--sync=flat"],
    ]


def test_threads_that_the_environment_says_take_cores_too(script, capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")

    assert "2 workers oversubscribe 4 cores (the machine itself), 4 threads each" in refused(
        capsys, "train.py"
    )
    assert len(planned(capsys, "train.py", "--threads=2")) == 2


def test_compared_variables_of_threads_are_not_overruled(script, capsys):
    arguments = ("train.py", "-n", "2", "--compare", "env:OMP_NUM_THREADS=1,2")
    assert "--threads" not in str(planned(capsys, *arguments))


def test_compared_threads_are_not_said_twice(script, capsys):
    for words in planned(capsys, "train.py", "-n", "2", "--compare", "threads=1,2"):
        assert len([word for word in words if word.startswith("--threads")]) == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["train.py", "-n", "1,8"], "8 workers oversubscribe 4 cores"),
        (
            ["train.py", "-n", "1,4", "--threads=2"],
            "oversubscribe 4 cores (the machine itself), 2 threads",
        ),
        (
            ["train.py", "-n", "1,2,4", "--compare", "threads=1,2"],
            "4 workers oversubscribe 4 cores (the machine itself), 2 threads each",
        ),
        (
            ["train.py", "-n", "1,2", "--compare", "env:OMP_NUM_THREADS=1,4"],
            "2 workers oversubscribe 4 cores (the machine itself), 4 threads each",
        ),
        (["train.py", "-n", "one"], "-n 'one' is no list of numbers"),
        (["train.py", "-n", "0,2"], "there must be at least one worker"),
        (["train.py", "-n", "1,2,1"], "-n 1,2,1: 1 is there twice. How often each runs, --repeats says."),
        (["train.py", "--worth=70"], "--worth 70 is no efficiency: give one such as 0.7"),
        (["train.py", "--worth=0.7x"], "--worth 0.7x is no efficiency: give one such as 0.7 or 70%"),
        (["digits", "--foo", "3"], "samestep train: No such option: --foo"),
        (["digits", "--epochs=x"], "samestep train: Invalid value for '--epochs'"),
        (["digits", "--bind=foo"], "--bind 'foo'"),
        (["train.py", "--bind=foo"], "--bind 'foo'"),
        (["train.py", "--split=foo"], "--split 'foo' is none of call, loader"),
        (["digits", "--compare", "sync=ddp,bogus"], "--sync 'bogus' is not one of"),
        (["digits", "-n", "1,4", "--batch-size=3"], "4 workers"),
        (["train.py", "--scaling=up"], "--scaling 'up' is none of auto, strong, weak, both"),
        (["train.py", "-n", "1,3", "--b={64/n}"], "64 is not divisible by n = 3"),
        (["--repeat=3", "train.py"], "samestep scale has no option --repeat"),
        (["torchrun", "train.py"], "torchrun starts workers itself. Give the script"),
        (["spawns.py"], "spawns.py starts its own workers, where scale cannot see them"),
        (["native.py", "--split=loader"], "--split says how a serial script is run on several workers"),
        (["native.py", "--compare=algorithm=ring,tree"], "--algorithm says how a serial script is run"),
        (
            ["train.py", "--mode=native", "--compare=batch-norm=global,local"],
            "--batch-norm says how a serial",
        ),
        (["nowhere.py"], "nowhere.py does not exist"),
        (["letters"], "letters is neither a script that is there nor a recipe"),
        (["digits", "--resume", "runs/a"], "--resume does not go with samestep scale"),
        (["digits", "--clock", "/tmp/q"], "which needs each run's clock in a folder of the study's"),
        (["digits", "--", "--clock-steps=3"], "which needs as many steps of each run: say --steps"),
        (["digits", "--clock-warm-up", "1"], "which needs as many of each run: say --warm-up"),
        (["digits", "--split=loader"], "--split says how a script is run"),
        (["train.py", "--compare", "sync=ddp,flat"], "--sync is a flag of recipes"),
        (
            ["digits", "--compare", "colour=red,blue"],
            "nor env:NAME, nor a flag of samestep train",
        ),
        (["digits", "--scaling=weak", "--config=a.toml"], "give --batch-size too"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_runs(script, capsys, arguments, problem):
    Path("spawns.py").write_text(SPAWNS)
    Path("native.py").write_text(NATIVE)

    assert problem in refused(capsys, *arguments)
    assert not Path("studies").exists()


@pytest.mark.parametrize(
    ("out", "problem"),
    [
        ("used", "--out used: there is a.txt in it already. Give a folder without files."),
        ("used/a.txt", "used/a.txt is a file. Give another folder."),
        ("used/a.txt/study", "used/a.txt is a file. Give another folder."),
    ],
)
def test_a_folder_that_cannot_be_the_studys_is_refused_by_a_dry_run_too(script, capsys, out, problem):
    Path("used").mkdir()
    Path("used/a.txt").write_text("")

    assert problem in refused(capsys, "--dry-run", "train.py", "--out", out)


def test_more_workers_than_cores_can_be_forced(script, capsys):
    assert len(planned(capsys, "train.py", "-n", "1,8", "--oversubscribe")) == 2


def test_the_tasks_of_a_launcher_do_not_scale(script, capsys, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)

    assert "scale starts its own runs" in refused(capsys, "train.py")


class Failing:
    """Makes one run, which gives nothing, beside others who keep a processor busy."""

    def background_load(self):
        return Load(0.94, 2)

    def run(self, trials, told):
        trials[0].folder.mkdir(parents=True)
        trials[0].log.write_text("no data")
        yield Outcome(trial=trials[0], exit_code=1, error="no data")


def test_a_terminal_is_told_where_a_log_is_from_here_and_the_file_from_its_folder(
    script, capsys, monkeypatch
):
    monkeypatch.setattr(scale_where, "Local", Failing)
    assert run_command(["scale", script, "-n", "1", "--repeats=1", "--out", "a b/c"]) == 1
    told, said = capsys.readouterr()
    assert said.startswith("samestep: other programs keep 0.9 of 2 processors busy: rates may be less")
    (note,) = read_study(Path("a b/c")).notes
    start, log = note.removesuffix(".").split("Its log: ")

    assert Path("a b/c", log).read_text() == "no data"
    assert f"{start}Its log: a b/c/{log}." in told.splitlines()
    assert run_command(["report", "a b/c/study.json"]) == 0
    assert f"{start}Its log: a b/c/{log}." in capsys.readouterr().out.splitlines()
    assert f"Its log: {log}." in Path("a b/c/report.html").read_text()
