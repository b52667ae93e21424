"""A study is collected from the files of runs: failures are named, and scaling modes are measured."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from samestep.scaling.analysis.study import read_study, write_study
from samestep.scaling.report.tables import facts
from samestep.scaling.sweep.execution import Frame, collect_study
from samestep.scaling.sweep.plan import Request, plan, variants
from samestep.scaling.sweep.trial import Load, Outcome, is_usage_error, outcome_of

DOCS = Path(__file__).parents[4] / "docs" / "reference"


def request(folder, **changes):
    asked = {
        "target": "train.py",
        "workers": (1, 2),
        "steps": 4,
        "warm_up": 1,
        "repeats": 2,
        "folder": folder,
    }
    return Request(**(asked | changes))


def write_files(trial, *, batch, seconds=0.1, steps=4, ended="steps", message="", made=None, **more):
    """Write the files of the workers of a run, each with its shard; of rank 0 if it runs once."""
    trial.clock.mkdir(parents=True)
    for rank in range(1 if more.get("kind") == "once" else trial.workers):
        header = {"format": 1, "rank": rank, "size": trial.workers, "kind": "native", "host": "a", "nodes": 1}
        header |= {
            "warm_up": 1,
            "device": "cpu",
            "device_name": "CPU",
            "backend": "gloo",
            "threads": 1,
            "processors": 2,
        } | more
        share = {"samples": batch // trial.workers, "seconds": seconds, "forward": seconds}
        rows = [{"step": number, "at": 1.0 + number * seconds, **share} for number in range(steps)]
        end = {"ended": ended, "message": message, "made": steps if made is None else made}
        end |= {"peak_memory_bytes": 1, "samples_per_epoch": None}
        text = "".join(json.dumps(row) + "\n" for row in [header, *rows, end])
        (trial.clock / f"rank-{rank}.jsonl").write_text(text)


def notes_of(study):
    """Return code and workers of each note."""
    return [(one.code, one.workers) for one in study.notes]


def note_codes(study):
    return [one.code for one in study.notes]


def text_of(study):
    return " ".join(one.text for one in study.notes)


def study_of(asked, outcomes, trials, places=8):
    return collect_study(Frame(request=asked, places=places), trials, outcomes)


def study_of_all(asked, batch_on, **left):
    """Return the study of runs whose global batch is `batch_on(trial)`."""
    trials = plan(asked)
    for trial in trials:
        write_files(trial, batch=batch_on(trial), **left)
    return study_of(asked, [outcome_of(trial, 0) for trial in trials], trials)


def test_points_have_speedup_and_repeats(tmp_path):
    study = study_of_all(request(tmp_path), lambda trial: 64)

    assert [(one.workers, one.mode, one.global_batch, len(one.runs)) for one in study.points] == [
        (1, "strong", 64, 2),
        (2, "strong", 64, 2),
    ]
    assert study.points[1].speedup == pytest.approx(1.0)
    assert study.target == "train.py"
    assert "other-mode" not in note_codes(study)


def test_a_script_that_runs_once_has_the_file_of_rank_0_alone(tmp_path):
    study = study_of_all(request(tmp_path), lambda trial: 64, kind="once")
    write_study(tmp_path / "study.json", study)

    assert [(one.workers, len(one.runs), len(one.timeline)) for one in study.points] == [(1, 2, 1), (2, 2, 1)]
    assert read_study(tmp_path).points == study.points


def test_one_worker_with_the_cores_of_several_is_a_point_of_its_own(tmp_path):
    asked = request(tmp_path, threads=1, on_cores=2)
    study = study_of_all(asked, lambda trial: 64)

    assert [(one.workers, one.cores_of, len(one.runs)) for one in study.points] == [(1, 1, 2), (2, 1, 2)]
    assert [(one.workers, one.cores_of, len(one.runs)) for one in study.one_process] == [(1, 2, 2)]


def test_the_machine_of_a_study_is_that_of_its_runs_not_of_the_collector(tmp_path):
    there = {"host": "gpu07", "device_name": "NVIDIA H200", "torch": "2.9.0+cu126", "launcher": "slurm"}
    below = {"cuda": "12.6", "nccl": "2.27.5", "driver": "560.35.05", "node_processors": 96, "python": ""}

    study = study_of_all(request(tmp_path), lambda trial: 64, **there, **below, memory_bytes=2**40)

    assert study.machine == {
        "hosts": ["gpu07"],
        "devices": ["NVIDIA H200"],
        "node_processors": [96],
        "memory_bytes": [2**40],
        "exchange": ["gloo"],
        "torch": ["2.9.0+cu126"],
        "cuda": ["12.6"],
        "nccl": ["2.27.5"],
        "driver": ["560.35.05"],
    }
    assert study.settings["launchers"] == ["slurm"]
    assert ("memory", "1 TiB") in facts(study.machine)


def test_all_settings_of_a_study_are_documented(tmp_path):
    settings = study_of_all(request(tmp_path, flags=("--bind=core",)), lambda trial: 64).settings
    table = (DOCS / "scaling.md").read_text().partition("### settings")[2].partition("###")[0]
    assert {name for name in settings if f"| `{name}` |" not in table} == set()


def test_common_settings_of_a_recipe_and_the_source_of_a_script_are_recorded(tmp_path):
    trials = plan(request(tmp_path))
    for trial in trials:
        write_files(trial, batch=64, config={"model": "convnet", "lr": 0.1, "batch_size": 32 * trial.workers})
    frame = Frame(request=request(tmp_path), places=8, source={"folder": "/here", "commit": "abc-dirty"})

    settings = collect_study(frame, trials, [outcome_of(trial, 0) for trial in trials]).settings

    assert settings["recipe"] == {"model": "convnet", "lr": 0.1}
    assert (settings["folder"], settings["commit"]) == ("/here", "abc-dirty")
    assert ("recipe", "model convnet, lr 0.1") in facts(settings)


def test_background_load_is_noted(tmp_path):
    asked = request(tmp_path)
    trials = plan(asked)
    for trial in trials:
        write_files(trial, batch=64)
    good = [outcome_of(trial, 0) for trial in trials]

    quiet = [replace(one, background=Load(0.1, 2)) for one in good]
    busy = [replace(one, background=Load(0.125 + number / 2, 2)) for number, one in enumerate(good)]

    (words,) = (one.text for one in study_of(asked, busy, trials).notes if one.code == "background-load")
    assert "0.1 to 1.6 of 2 processors" in words
    assert "0.9 on average" in words
    assert "background-load" not in note_codes(study_of(asked, quiet, trials))


def test_a_batch_that_grew_is_weak_scaling_whatever_was_requested(tmp_path):
    study = study_of_all(request(tmp_path, scaling="auto"), lambda trial: 64 * trial.workers)

    assert [one.mode for one in study.points] == ["weak", "weak"]
    assert "other-mode" not in note_codes(study)


def test_a_requested_mode_that_was_not_measured_is_noted(tmp_path):
    asked = request(tmp_path, scaling="weak", arguments=("--batch={32*n}",))
    study = study_of_all(asked, lambda trial: 64)

    assert ("other-mode", (2,)) in notes_of(study)
    assert [one.mode for one in study.points] == ["strong", "strong"]


def test_both_modes_are_series_that_share_their_first_point(tmp_path):
    asked = request(tmp_path, scaling="both", arguments=("{64/n}",), repeats=1)
    study = study_of_all(asked, lambda trial: int(trial.command[-1]) * trial.workers)

    assert [(one.mode, one.workers, one.global_batch) for one in study.points] == [
        ("strong", 1, 64),
        ("strong", 2, 64),
        ("weak", 1, 64),
        ("weak", 2, 128),
    ]
    assert "other-mode" not in note_codes(study)


def test_a_run_of_several_variants_is_the_baseline_of_each(tmp_path):
    compared = variants(["sync=flat,ddp"], verb="train", flags=["sync"])
    asked = request(tmp_path, kind="recipe", target="digits", variants=compared)

    study = study_of_all(asked, lambda trial: 64)

    assert [(one.workers, one.variant) for one in study.points] == [
        *((1, "sync=flat"), (2, "sync=flat")),
        *((1, "sync=ddp"), (2, "sync=ddp")),
    ]
    assert study.points[0].runs == study.points[2].runs


def test_variants_keep_the_order_in_which_they_were_given(tmp_path):
    compared = variants(["env:A=3,1,2"], verb="run", flags=())
    for seed in range(3):
        asked = request(tmp_path / str(seed), variants=compared, repeats=1, seed=seed)
        study = study_of_all(asked, lambda trial: 64)

        assert list(dict.fromkeys(one.variant for one in study.points)) == ["env:A=3", "env:A=1", "env:A=2"]


@pytest.mark.parametrize(
    ("header", "places", "expected"),
    [
        ({"device": "cuda"}, 1, True),
        ({"device": "cuda"}, 2, False),
        ({"processors": 1}, 8, True),
        ({"threads": 2}, 8, True),
        ({"threads": 2, "processors": 4}, 1, False),
    ],
)
def test_oversubscribed_workers_are_marked(tmp_path, header, places, expected):
    asked = request(tmp_path)
    trials = plan(asked)
    for trial in trials:
        write_files(trial, batch=64, **header)
    study = study_of(asked, [outcome_of(trial, 0) for trial in trials], trials, places=places)

    assert [one.oversubscribed for one in study.points] == [False, expected]


def test_a_run_that_failed_is_named_and_the_others_are_reported(tmp_path):
    asked = request(tmp_path)
    trials = plan(asked)
    good = [trial for trial in trials if trial.workers == 1]
    bad = next(trial for trial in trials if trial.workers == 2)
    for trial in good:
        write_files(trial, batch=64)
    write_files(bad, batch=64, ended="error: ValueError", message="bad batch")
    bad.log.write_text("Traceback\n")
    outcomes = [*(outcome_of(trial, 0) for trial in good), outcome_of(bad, 3)]
    study = study_of(asked, outcomes, trials)

    assert [one.workers for one in study.points] == [1]
    log = bad.log.relative_to(tmp_path)
    (failure,) = [one for one in study.notes if one.code == "run-failed"]
    assert failure.workers == (2,)
    for value in (bad.in_words(), "exit code 3", "rank 0: ValueError: bad batch.", f" Its log: {log}."):
        assert value in failure.text
    assert "interrupted" not in note_codes(study)


def test_runs_that_were_not_executed_are_noted(tmp_path):
    asked = request(tmp_path)
    first, *rest = trials = plan(asked)
    write_files(first, batch=64)

    (note,) = [
        one for one in study_of(asked, [outcome_of(first, 0)], trials).notes if one.code == "interrupted"
    ]
    assert f"{len(rest)} of 4 runs" in note.text


def test_a_study_without_a_result_has_no_point(tmp_path):
    asked = request(tmp_path)
    trials = plan(asked)
    study = study_of(asked, [Outcome(trial=trials[0], exit_code=None, error="never started")], trials)

    assert study.points == ()
    assert study.verdict is None
    assert notes_of(study)[0] == ("run-failed", (trials[0].workers,))
    assert "never started" in study.notes[0].text


def test_a_training_that_ended_early_is_measured_and_noted(tmp_path):
    study = study_of_all(request(tmp_path), lambda trial: 64, steps=3)

    assert ("ended-early", (1, 2)) in notes_of(study)
    assert "3 on 1 worker, 3 on 2 workers" in text_of(study)


@pytest.mark.parametrize("short", [0, 1])
def test_a_training_that_ended_early_is_noted_whichever_run_it_was(tmp_path, short):
    asked = request(tmp_path)
    trials = plan(asked)
    for trial in trials:
        write_files(trial, batch=64, steps=3 if (trial.workers, trial.repeat) == (2, short) else 4)
    study = study_of(asked, [outcome_of(trial, 0) for trial in trials], trials)

    assert ("ended-early", (2,)) in notes_of(study)


@pytest.mark.parametrize(
    ("code", "log", "error"),
    [
        (2, "usage\nsamestep: error: no file. Give one.\nmore\n", "no file. Give one."),
        (1, "Traceback\nKeyError: 'x'\n\nsamestep: rank 0 of 2 failed\n", "KeyError: 'x'"),
        (1, "first\nlast\n\n", "last"),
        (2, "t.py: error: no --lr\nsamestep: rank 0 of 2 ended with exit code 2\n", "t.py: error: no --lr"),
        (3, "samestep: rank 0 of 2 ended\n", "samestep: rank 0 of 2 ended"),
        (137, "", "exit code 137 (SIGKILL) without output"),
        (0, "fine\n", "holds no rank-0.jsonl: no step was measured there."),
    ],
)
def test_the_reason_of_a_failed_run_is_its_error(tmp_path, code, log, error):
    trial = replace(plan(request(tmp_path))[0], folder=Path(tmp_path))
    trial.clock.mkdir()
    trial.log.write_text(log)

    assert outcome_of(trial, code).error.endswith(error)


@pytest.mark.parametrize(
    ("made", "values"),
    [(0, ["no training step"]), (1, ["after 1 step", "first 1 (--warm-up)"])],
)
def test_a_run_without_a_measured_step_has_no_result(tmp_path, made, values):
    trial = plan(request(tmp_path))[0]
    write_files(trial, batch=64, steps=0, ended="end", made=made)

    outcome = outcome_of(trial, 0)
    assert outcome.exit_code == 0
    assert all(value in outcome.error for value in values)
    assert notes_of(study_of(request(tmp_path), [outcome], [trial])) == [("run-empty", (trial.workers,))]


def test_the_last_output_of_a_worker_is_the_reason_of_its_exit_code(tmp_path):
    trial = plan(request(tmp_path))[0]
    write_files(trial, batch=64, steps=0, ended="error: exit code 2", message="t.py: error: no --lr", made=0)

    outcome = outcome_of(trial, 2)
    assert outcome.error == "rank 0: exit code 2: t.py: error: no --lr"
    assert is_usage_error(outcome)
    assert not is_usage_error(replace(outcome, exit_code=1))


def test_exit_code_2_after_steps_is_not_a_usage_error(tmp_path):
    trial = plan(request(tmp_path))[0]
    write_files(trial, batch=64, ended="error: exit code 2")

    assert not is_usage_error(outcome_of(trial, 2))
