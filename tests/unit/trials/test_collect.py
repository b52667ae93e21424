"""From what runs leave behind to a study: what failed is named, and modes are those that were seen."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from samestep.report.scaling.rows import facts
from samestep.trials.collect import Frame, collected
from samestep.trials.failed import is_refused, outcome_of
from samestep.trials.load import Load
from samestep.trials.plan import Request, plan
from samestep.trials.trial import Outcome
from samestep.trials.variants import variants

DOCS = Path(__file__).parents[3] / "docs" / "reference"


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


def leave(trial, *, batch, seconds=0.1, steps=4, ended="steps", message="", made=None, **more):
    """Leave behind what the workers of a run do: each with its share of the batch."""
    trial.clock.mkdir(parents=True)
    for rank in range(trial.workers):
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


def study_of(asked, outcomes, trials, places=8):
    return collected(Frame(request=asked, places=places), trials, outcomes)


def all_went_well(asked, batch_on, **left):
    """Return the study of runs whose global batch on so many workers is `batch_on(workers)`."""
    trials = plan(asked)
    for trial in trials:
        leave(trial, batch=batch_on(trial), **left)
    return study_of(asked, [outcome_of(trial, 0) for trial in trials], trials)


def test_points_have_speedup_and_repeats(tmp_path):
    study = all_went_well(request(tmp_path), lambda trial: 64)

    assert [(one.workers, one.mode, one.global_batch, len(one.runs)) for one in study.points] == [
        (1, "strong", 64, 2),
        (2, "strong", 64, 2),
    ]
    assert study.points[1].speedup == pytest.approx(1.0)
    assert study.target == "train.py"
    assert not [note for note in study.notes if "Asked for" in note]


def test_a_study_is_of_the_machine_that_its_runs_were_on_and_not_of_the_one_that_collects(tmp_path):
    there = {"host": "gpu07", "device_name": "NVIDIA H200", "torch": "2.9.0+cu126", "launcher": "slurm"}
    below = {"cuda": "12.6", "nccl": "2.27.5", "driver": "560.35.05", "node_processors": 96, "python": ""}

    study = all_went_well(request(tmp_path), lambda trial: 64, **there, **below, memory_bytes=2**40)

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


def test_what_a_study_says_of_how_it_was_run_is_described(tmp_path):
    told = all_went_well(request(tmp_path, flags=("--bind=core",)), lambda trial: 64).settings
    table = (DOCS / "scaling.md").read_text().partition("### settings")[2].partition("###")[0]
    assert {name for name in told if f"| `{name}` |" not in table} == set()


def test_what_a_recipe_is_trained_as_in_all_runs_and_where_a_script_is_are_told(tmp_path):
    trials = plan(request(tmp_path))
    for trial in trials:
        leave(trial, batch=64, config={"model": "convnet", "lr": 0.1, "batch_size": 32 * trial.workers})
    frame = Frame(request=request(tmp_path), places=8, source={"folder": "/here", "commit": "abc-dirty"})

    settings = collected(frame, trials, [outcome_of(trial, 0) for trial in trials]).settings

    assert settings["recipe"] == {"model": "convnet", "lr": 0.1}
    assert (settings["folder"], settings["commit"]) == ("/here", "abc-dirty")
    assert ("recipe", "model convnet, lr 0.1") in facts(settings)


def test_what_others_did_meanwhile_is_noted(tmp_path):
    asked = request(tmp_path)
    trials = plan(asked)
    for trial in trials:
        leave(trial, batch=64)
    good = [outcome_of(trial, 0) for trial in trials]

    quiet = [replace(one, others=Load(0.1, 2)) for one in good]
    busy = [replace(one, others=Load(0.125 + number / 2, 2)) for number, one in enumerate(good)]

    notes = study_of(asked, busy, trials).notes
    (said,) = (note for note in notes if note.startswith("Other programs"))
    assert said.startswith("Other programs kept 0.1 to 1.6 of 2 processors busy, 0.9 on average, as seen")
    assert not [note for note in study_of(asked, quiet, trials).notes if "Other programs" in note]


def test_a_batch_that_grew_is_weak_scaling_whatever_was_asked_for(tmp_path):
    study = all_went_well(request(tmp_path, scaling="auto"), lambda trial: 64 * trial.workers)

    assert [one.mode for one in study.points] == ["weak", "weak"]
    assert "For strong scaling, give the batch of each worker as {64/n}." in study.notes


def test_a_large_batch_is_told_as_a_template_reads_it(tmp_path):
    asked = request(tmp_path, scaling="strong", arguments=("--batch={64/n}",))
    study = all_went_well(asked, lambda trial: 2**20 * trial.workers)

    assert "For strong scaling, give the batch of each worker as {1048576/n}." in study.notes
    assert any("seen was a global batch of 1,048,576 on 1, 2,097,152 on 2" in note for note in study.notes)


def test_what_was_asked_for_and_not_seen_is_said(tmp_path):
    asked = request(tmp_path, scaling="weak", arguments=("--batch={32*n}",))
    study = all_went_well(asked, lambda trial: 64)

    assert (
        "Asked for was weak scaling, in which each worker's batch stays; seen was a global batch of 64 on 1, "
        "64 on 2, and these points are filed under what was seen: strong scaling."
    ) in study.notes


def test_both_modes_are_series_that_share_their_first_point(tmp_path):
    asked = request(tmp_path, scaling="both", arguments=("{64/n}",), repeats=1)
    study = all_went_well(asked, lambda trial: int(trial.command[-1]) * trial.workers)

    assert [(one.mode, one.workers, one.global_batch) for one in study.points] == [
        ("strong", 1, 64),
        ("strong", 2, 64),
        ("weak", 1, 64),
        ("weak", 2, 128),
    ]
    assert not [note for note in study.notes if "Asked for" in note]


def test_a_variable_that_nobody_reads_cannot_make_a_difference(tmp_path):
    compared = variants(["env:NCCL_ALGO=Ring,Tree"], verb="run", flags=())
    study = all_went_well(request(tmp_path, variants=compared), lambda trial: 64)

    assert study.verdict.comparisons[1] == (
        "2 workers: env:NCCL_ALGO=Ring and env:NCCL_ALGO=Tree cannot differ, and what they differ by is "
        "chance: NCCL_ALGO is read by nccl, and these runs exchange by gloo."
    )


def test_a_run_that_counts_for_several_variants_is_the_base_of_each(tmp_path):
    compared = variants(["sync=flat,ddp"], verb="train", flags=["sync"])
    asked = request(tmp_path, kind="recipe", target="digits", variants=compared)

    study = all_went_well(asked, lambda trial: 64)

    assert [(one.workers, one.variant) for one in study.points] == [
        *((1, "sync=flat"), (2, "sync=flat")),
        *((1, "sync=ddp"), (2, "sync=ddp")),
    ]
    assert study.points[0].runs == study.points[2].runs
    assert study.verdict.comparisons[0].endswith("have the same runs, since one worker exchanges nothing.")


def test_variants_stand_in_the_order_in_which_they_were_named(tmp_path):
    compared = variants(["env:A=3,1,2"], verb="run", flags=())
    for seed in range(3):
        asked = request(tmp_path / str(seed), variants=compared, repeats=1, seed=seed)
        study = all_went_well(asked, lambda trial: 64)

        assert list(dict.fromkeys(one.variant for one in study.points)) == ["env:A=3", "env:A=1", "env:A=2"]


@pytest.mark.parametrize(
    ("told", "places", "expected"),
    [
        ({"device": "cuda"}, 1, True),
        ({"device": "cuda"}, 2, False),
        ({"processors": 1}, 8, True),
        ({"threads": 2}, 8, True),
        ({"threads": 2, "processors": 4}, 1, False),
    ],
)
def test_workers_that_share_what_each_needs_are_marked(tmp_path, told, places, expected):
    asked = request(tmp_path)
    trials = plan(asked)
    for trial in trials:
        leave(trial, batch=64, **told)
    study = study_of(asked, [outcome_of(trial, 0) for trial in trials], trials, places=places)

    assert [one.oversubscribed for one in study.points] == [False, expected]


def test_a_run_that_failed_is_named_and_the_others_are_reported(tmp_path):
    asked = request(tmp_path)
    trials = plan(asked)
    good = [trial for trial in trials if trial.workers == 1]
    bad = next(trial for trial in trials if trial.workers == 2)
    for trial in good:
        leave(trial, batch=64)
    leave(bad, batch=64, ended="error: ValueError", message="bad batch")
    bad.log.write_text("Traceback\n")
    outcomes = [*(outcome_of(trial, 0) for trial in good), outcome_of(bad, 3)]
    study = study_of(asked, outcomes, trials)

    assert [one.workers for one in study.points] == [1]
    log = bad.log.relative_to(tmp_path)
    why = "failed with exit code 3: rank 0: ValueError: bad batch."
    assert f"{bad.in_words()} {why} Its log: {log}." in study.notes
    assert not [note for note in study.notes if "by hand" in note]


def test_what_was_not_run_is_said(tmp_path):
    asked = request(tmp_path)
    first, *rest = trials = plan(asked)
    leave(first, batch=64)

    assert (
        f"Ended by hand: {len(rest)} of 4 runs were not made."
        in study_of(asked, [outcome_of(first, 0)], trials).notes
    )


def test_a_study_in_which_nothing_went_well_has_no_point(tmp_path):
    asked = request(tmp_path)
    trials = plan(asked)
    study = study_of(asked, [Outcome(trial=trials[0], exit_code=None, error="never started")], trials)

    assert study.points == ()
    assert study.verdict is None
    assert f"{trials[0].in_words()} failed: never started." in study.notes


def test_a_training_that_ended_early_is_measured_and_said(tmp_path):
    study = all_went_well(request(tmp_path), lambda trial: 64, steps=3)

    assert "The training ended before 4 steps were measured: 3 on 1 worker, 3 on 2 workers." in study.notes


@pytest.mark.parametrize("short", [0, 1])
def test_a_training_that_ended_early_is_said_whichever_of_its_runs_it_was(tmp_path, short):
    asked = request(tmp_path)
    trials = plan(asked)
    for trial in trials:
        leave(trial, batch=64, steps=3 if (trial.workers, trial.repeat) == (2, short) else 4)
    study = study_of(asked, [outcome_of(trial, 0) for trial in trials], trials)

    assert "The training ended before 4 steps were measured: 3 on 2 workers." in study.notes


@pytest.mark.parametrize(
    ("code", "log", "error"),
    [
        (2, "usage\nsamestep: error: no file. Give one.\nmore\n", "no file. Give one."),
        (1, "Traceback\nKeyError: 'x'\n\nsamestep: rank 0 of 2 failed\n", "KeyError: 'x'"),
        (1, "first\nlast\n\n", "last"),
        (2, "t.py: error: no --lr\nsamestep: rank 0 of 2 ended with exit code 2\n", "t.py: error: no --lr"),
        (3, "samestep: rank 0 of 2 ended\n", "samestep: rank 0 of 2 ended"),
        (137, "", "exit code 137 (SIGKILL), and nothing was printed"),
        (0, "fine\n", "holds no rank-0.jsonl: no step was measured there."),
    ],
)
def test_why_a_run_gave_nothing(tmp_path, code, log, error):
    trial = replace(plan(request(tmp_path))[0], folder=Path(tmp_path))
    trial.clock.mkdir()
    trial.log.write_text(log)

    assert outcome_of(trial, code).error.endswith(error)


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (0, "no training step was seen: no optimizer made one, and there was no backward"),
        (1, "it ended after 1 step, and the first 1 (--warm-up) do not count"),
    ],
)
def test_a_run_without_a_measured_step_gave_nothing(tmp_path, made, error):
    trial = plan(request(tmp_path))[0]
    leave(trial, batch=64, steps=0, ended="end", made=made)

    assert outcome_of(trial, 0).error == error


def test_what_a_worker_printed_last_is_why_it_ended_with_an_exit_code(tmp_path):
    trial = plan(request(tmp_path))[0]
    leave(trial, batch=64, steps=0, ended="error: exit code 2", message="t.py: error: no --lr", made=0)

    outcome = outcome_of(trial, 2)
    assert outcome.error == "rank 0: exit code 2: t.py: error: no --lr"
    assert is_refused(outcome)
    assert not is_refused(replace(outcome, exit_code=1))


def test_who_ends_with_exit_code_2_after_steps_was_not_called_wrongly(tmp_path):
    trial = plan(request(tmp_path))[0]
    leave(trial, batch=64, ended="error: exit code 2")

    assert not is_refused(outcome_of(trial, 2))
