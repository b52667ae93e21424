"""``samestep train`` resolves its options to a configuration, or refuses them in one line with advice."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.cli import train as verb
from samestep.cli.main import run_command
from samestep.cli.options.launch import Clock
from samestep.cli.options.results import Output
from samestep.ranks.world.protocol import SoloWorld
from samestep.training.output.run_folder import Result
from samestep.training.recipes.request import Request, after_failure
from samestep.training.recipes.resolve import broadcast_resolved, own_folder, resolve
from support.run_folders import run_folder


def resolved(workers=1, **asked):
    return resolve(Request(**{"changes": {}, **asked}), workers=workers)


def refused(**asked):
    with pytest.raises(UsageError) as refusal:
        resolved(**asked)
    return str(refusal.value)


@pytest.fixture
def started(tmp_path):
    """The folder of a run that was started: digits at a rate of 0.5, on 640 samples."""
    folder = tmp_path / "started"
    folder.mkdir()
    config = resolved(
        recipe="digits", subset=640, changes={"lr": 0.5, "precision": "auto", "keep": 5}
    ).config()
    (folder / "config.toml").write_text(tomli_w.dumps({**config, "precision": "fp32"}))
    return folder


def test_one_command_starts_a_run_and_resumes_it(started, tmp_path):
    command = {"recipe": "digits", "subset": 640, "changes": {"lr": 0.5, "precision": "auto"}}

    first = resolved(**command, resume=tmp_path / "new")
    later = resolved(**command, resume=started)

    assert (first.resume, first.out) == (False, tmp_path / "new")
    assert (later.resume, later.out) == (True, started)
    assert (later.settings.lr, later.settings.precision, later.options.keep) == (0.5, "fp32", 5)


def test_a_configuration_file_starts_a_run_and_resumes_it(started, tmp_path):
    first = resolved(config=started / "config.toml", resume=tmp_path / "new")
    later = resolved(config=started / "config.toml", resume=started)

    assert (first.resume, later.resume) == (False, True)
    assert first.config() == later.config()


def test_a_resume_without_a_stored_run_needs_a_recipe(tmp_path):
    assert "config.toml" in refused(resume=tmp_path, changes={"lr": 0.5})


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"changes": {"lr": 0.1}}, "--lr is 0.5 there, not 0.1"),
        ({"changes": {"clip_norm": 1.0}}, "--clip-norm is not set there, not 1.0"),
        ({"recipe": "mnist"}, "the recipe is digits there, not mnist"),
        ({"recipe": "digits", "subset": 64}, "--subset is 640 there, not 64"),
        ({"fast": True}, "--fast is False there, not True"),
    ],
)
def test_a_resume_with_other_settings_is_refused(started, asked, message):
    assert message in refused(resume=started, **asked)


def test_a_resume_can_change_checkpoint_and_profile_options(started):
    watched = {"keep": 3, "checkpoint_minutes": 1.0, "profile": "5:6", "per_rank": True}
    found = resolved(resume=started, changes=watched)

    assert {name: getattr(found.options, name) for name in watched} == watched
    assert found.settings == resolved(resume=started).settings


def test_a_resume_uses_another_data_folder(started, tmp_path):
    config = started / "config.toml"
    config.write_text(config.read_text().replace('data = "digits"', 'data = "folder"\ndata_dir = "nowhere"'))

    assert f"{tmp_path}/there" in refused(resume=started, data_dir=tmp_path / "there")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"subset": 0}, "a subset of 0 samples: digits train has 3823"),
        ({"data_dir": Path("x")}, "--data-dir x does not go with --data digits"),
        (
            {"recipe": "synthetic", "data": "synthetic:1x8x8,2,8", "data_dir": Path("x")},
            "--data-dir x does not go with --data synthetic:1x8x8,2,8",
        ),
        ({"changes": {"loader_workers": 2}}, "--loader-workers has no effect with digits"),
        ({"changes": {"schedule": "step"}}, "--step-epochs is 30"),
        ({"changes": {"schedule": "step", "step_epochs": 10.0}}, "--step-epochs is 10"),
        (
            {"changes": {"schedule": "multistep", "milestones": (3.0, 10.0)}},
            "--milestones is 10",
        ),
        (
            {"changes": {"optimizer": "adamw", "momentum": 0.5}},
            "--momentum 0.5 does not go with --optimizer adamw",
        ),
        ({"changes": {"gamma": 0.5}}, "--gamma 0.5 needs --schedule step"),
    ],
)
def test_a_flag_without_effect_is_refused(asked, message):
    assert message in refused(**asked)


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [({"optimizer": "adamw"}, "--optimizer adamw"), ({"momentum": 0.0}, "--momentum 0")],
)
def test_an_option_that_contradicts_nesterov_in_a_recipe_is_refused_with_advice(changes, chosen):
    message = refused(recipe="cifar10", fast=True, changes=changes)

    assert chosen in message
    assert "--no-nesterov" in message
    assert "--nesterov " in refused(changes={**changes, "nesterov": True})


def test_settings_without_effect_in_a_recipe_or_a_file_are_accepted(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text("schedule = 'step'\nstep_epochs = 20\nloader_workers = 1\ndata_dir = 'nowhere'\n")

    assert resolved(config=file, changes={"epochs": 3}).settings.step_epochs == 20
    assert resolved(config=file, weights=Path("x"), changes={"precision": "bf16"}).options.loader_workers == 1


@pytest.fixture
def scaled(tmp_path):
    """The configuration of a training with a batch per worker."""
    path = tmp_path / "scaled.toml"
    config = resolved(workers=4, recipe="digits", batch_per_worker=16, lr_scale="linear").config()
    path.write_text(tomli_w.dumps(config))
    return path


def test_a_scaled_rate_is_not_scaled_again(scaled):
    again = resolved(workers=4, config=scaled)
    other = resolved(workers=2, config=scaled, batch_per_worker=16, lr_scale="linear", changes={"lr": 0.1})

    message = refused(workers=2, config=scaled, batch_per_worker=16, lr_scale="linear")
    assert f"--lr-scale linear cannot scale the rate 0.4 of {scaled}" in message
    assert (again.settings.lr, other.settings.lr) == (0.4, 0.2)


def test_the_label_of_a_file_is_kept_unless_batch_or_rate_change(scaled):
    assert "on each of 4 workers" in resolved(config=scaled).label
    assert "on each of 4 workers" in resolved(config=scaled, changes={"epochs": 3}).label
    assert resolved(config=scaled, changes={"lr": 0.1}).label is None
    assert resolved(config=scaled, changes={"batch_size": 64}).label is None
    assert resolved(workers=1, config=scaled, batch_per_worker=64).label is None


class BroadcastWorld(SoloWorld):
    """A world in which another process is rank 0, and broadcasts `first`."""

    def __init__(self, first):
        super().__init__()
        self.first = first

    def broadcast_object(self, value, src=0):
        return {name: getattr(self.first, name) for name in value}

    def on_main(self, fn):
        return own_folder(self.first)


def test_the_folder_of_a_run_is_broadcast_from_rank_0(started, tmp_path):
    ours = resolved(recipe="digits", subset=640, changes={"lr": 0.5}, resume=tmp_path / "seen here only")
    first = resolved(resume=started)

    found = broadcast_resolved(ours, BroadcastWorld(first))

    assert (found.out, found.resume) == (started, True)
    assert found.config() == first.config()


def test_restarted_workers_resume_their_run(started):
    asked = Request(recipe="digits", changes={"lr": 0.5}, batch_per_worker=16, out=started)

    again = resolve(after_failure(asked), workers=2)

    assert again.resume
    assert again.out == started
    assert again.settings.lr == 0.5
    assert len(again.train_set) == 640


def test_restarted_workers_start_a_run_if_none_was_stored(tmp_path):
    asked = Request(recipe="digits", changes={}, out=tmp_path)

    assert after_failure(asked) == asked


RESULT = Result(
    accuracy=0.5,
    correct=1,
    total=2,
    loss=1.0,
    epochs=1,
    steps=1,
    seconds=1.0,
    samples_per_second=2.0,
    weights_sha256="0",
    world_size=1,
    step_s={},
)


def test_a_report_that_cannot_be_written_is_a_warning_and_the_result_is_printed(tmp_path, capsys):
    verb._report(RESULT, tmp_path / "no run folder", Output(figures=tmp_path, as_json=False))

    captured = capsys.readouterr()
    assert RESULT.summary() in captured.out
    assert len(captured.err.splitlines()) == 1


def test_the_figures_of_a_training_are_saved_at_its_end(tmp_path, capsys):
    folder = run_folder(tmp_path / "run")
    verb._report(RESULT, folder, Output(figures=tmp_path / "figures", as_json=True))

    assert (tmp_path / "figures" / "training-loss.svg").exists()
    assert (folder / "report.html").exists()
    assert json.loads(capsys.readouterr().out)["accuracy"] == 0.5


def test_a_worker_gets_the_folder_of_figures(tmp_path):
    output = Output(figures=tmp_path, as_json=False)
    request = Request(recipe="digits", changes={})

    assert f"--figures={tmp_path}" in verb._arguments(request, Clock(), output)
    assert verb._arguments(request, Clock(), replace(output, figures=None)) == ("train", "digits")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["digits", "--figures", "/dev/null/x"], ["--figures /dev/null/x", "is a file"]),
        *(
            (["digits", "--eval-only", "--from", "x", flag, value], ["--eval-only", flag])
            for flag, value in {
                "--figures": "x",
                "--clock": "x",
                "--out": "y",
                "--subset": "4",
                "--resume": "y",
                "--lr": "0.5",
                "--logger": "wandb",
                "--checkpoint-steps": "5",
            }.items()
        ),
        (["--resume", "x", "--batch-per-worker", "8"], ["--resume x", "--batch-per-worker 8"]),
        (["--resume", "x", "--lr-scale", "none"], ["--resume x", "--lr-scale none"]),
    ],
)
def test_flags_that_do_not_go_together_are_refused_before_a_worker_starts(
    arguments, named, capsys, monkeypatch
):
    monkeypatch.setattr(env, "snapshot", dict)

    assert run_command(["train", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(part in line for part in named)


def test_a_folder_of_figures_is_checked_before_a_worker_starts(capsys, monkeypatch):
    monkeypatch.setattr(env, "snapshot", dict)

    assert run_command(["train", "digits", "--figures", "/dev/null/x"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--figures /dev/null/x" in line


def test_a_momentum_of_zero_is_a_momentum_too(capsys, monkeypatch):
    monkeypatch.setattr(env, "snapshot", dict)

    assert run_command(["train", "digits", "--momentum", "0", "--optimizer", "adamw"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--momentum 0 does not go with --optimizer adamw" in line


def test_a_result_that_cannot_be_printed_is_a_warning(tmp_path, capsys, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(verb, "json_line", full)
    monkeypatch.setattr(verb, "discard_output", lambda: None)

    verb._report(RESULT, tmp_path, Output(figures=None, as_json=True))

    assert "No space left" in capsys.readouterr().err


@pytest.mark.parametrize("value", [1.0, 1.5, -0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["ema", "momentum"])
def test_a_decay_that_is_negative_or_not_below_one_is_refused(name, value):
    assert f"--{name}" in refused(recipe="digits", changes={name: value})


def test_two_runs_that_choose_one_folder_by_the_time_get_two(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    one = resolved()

    chosen = [broadcast_resolved(one, SoloWorld()).out for _ in range(2)]

    assert len(set(chosen)) == 2
    assert all(folder.is_dir() for folder in chosen)
    given = resolved(out=tmp_path / "given")
    assert broadcast_resolved(given, SoloWorld()).out == tmp_path / "given"
    assert not given.out.exists()
