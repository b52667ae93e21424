"""The runs of a study are planned from its request."""

from pathlib import Path

import pytest

from samestep.base.errors import UsageError
from samestep.scaling.sweep.plan import Request, in_lines, plan, variants


def request(**changes):
    asked = {
        "target": "train.py",
        "workers": (1, 2, 4),
        "steps": 10,
        "warm_up": 2,
        "repeats": 1,
        "folder": Path("/s"),
    }
    return Request(**(asked | changes))


def arguments(trials, *, behind="train.py"):
    """Return the arguments of each run, by workers and modes."""
    return {
        (one.workers, *one.modes): one.command[one.command.index(behind) + 1 :]
        for one in sorted(trials, key=lambda one: one.workers)
    }


def test_variants_of_communication_are_one_run_on_one_worker():
    compared = variants(["sync=flat,ddp", "env:A=1,2"], verb="train", flags=["sync"])
    trials = plan(request(kind="recipe", target="digits", workers=(1, 2), variants=compared))

    alone = sorted((one.variant, one.also, one.in_words()) for one in trials if one.workers == 1)
    assert alone == [
        (f"sync=flat env:A={k}", (f"sync=ddp env:A={k}",), f"1 worker, env:A={k}, round 1") for k in (1, 2)
    ]
    two = {one.variant: one.also for one in trials if one.workers == 2}
    assert two == {one.name: () for one in compared}


def test_a_run_is_a_clocked_command_with_a_scratch_folder():
    (trial,) = plan(request(workers=(2,), flags=("--threads=1",), arguments=("--lr", "0.1")))

    assert trial.launch_command("python") == [
        *("python", "-m", "samestep", "run", "-n", "2"),
        *("--clock=/s/trials/001-n2-strong-r1/clock", "--clock-steps=10", "--clock-warm-up=2", "--threads=1"),
        *("--scratch=/s/trials/001-n2-strong-r1/scratch", "train.py", "--lr", "0.1"),
    ]
    assert "-n" not in trial.task_command("python")
    assert trial.environment["WANDB_MODE"] == "disabled"


def test_each_number_of_workers_runs_in_each_round():
    trials = plan(request(repeats=3))

    assert [one.number for one in trials] == list(range(9))
    assert sorted((one.repeat, one.workers) for one in trials) == [
        (r, n) for r in range(3) for n in (1, 2, 4)
    ]
    assert len({one.folder for one in trials}) == 9


def test_templates_follow_the_workers_without_scaling():
    trials = plan(request(arguments=("--batch-size={64/n}",)))

    assert arguments(trials) == {
        (1, "strong"): ("--batch-size=64",),
        (2, "strong"): ("--batch-size=32",),
        (4, "strong"): ("--batch-size=16",),
    }


@pytest.mark.parametrize(("written", "other"), [("{64/n}", "64"), ("{64*n}", "64")])
def test_both_modes_share_the_baseline_run(written, other):
    trials = plan(request(workers=(1, 2), arguments=(written,), scaling="both"))
    follows, stays = ("strong", "weak") if "/" in written else ("weak", "strong")

    assert arguments(trials) == {
        (1, "strong", "weak"): ("64",),
        (2, follows): ("32" if "/" in written else "128",),
        (2, stays): (other,),
    }


def test_the_other_mode_uses_the_nodes_of_the_baseline():
    asked = {"workers": (4, 8), "per_node": 2, "scaling": "both"}

    of_nodes = arguments(plan(request(arguments=("{64/nodes}",), **asked)))
    assert of_nodes == {(4, "strong", "weak"): ("32",), (8, "strong"): ("16",), (8, "weak"): ("32",)}
    # The workers of a full node are constant, so both modes are one run.
    of_local = arguments(plan(request(arguments=("{64/local}",), **asked)))
    assert of_local == {(4, "strong", "weak"): ("32",), (8, "strong", "weak"): ("32",)}


def test_both_modes_of_a_script_need_a_template():
    with pytest.raises(UsageError, match="--scaling both "):
        plan(request(arguments=("--batch-size=64",), scaling="both"))


def test_the_global_batch_of_a_recipe_is_constant_or_grows():
    recipe = request(
        target="digits",
        kind="recipe",
        workers=(1, 2),
        scaling="both",
        batch=24,
        arguments=("--batch-size", "24"),
    )
    flags = {key: words[:-1] for key, words in arguments(plan(recipe), behind="--clock-warm-up=2").items()}

    assert flags == {
        (1, "strong", "weak"): ("--batch-size", "24"),
        (2, "strong"): ("--batch-size", "24"),
        (2, "weak"): ("--batch-size=48",),
    }


def test_workers_are_divided_among_nodes():
    trials = plan(request(per_node=2, arguments=("{local}", "{nodes}")))

    assert sorted((one.workers, one.nodes, *one.command[-2:]) for one in trials) == [
        (1, 1, "1", "1"),
        (2, 1, "2", "1"),
        (4, 2, "2", "2"),
    ]
    with pytest.raises(UsageError, match=r"3 workers .* 2 nodes"):
        plan(request(workers=(3,), per_node=2))


def test_variants_run_in_the_same_rounds():
    compared = variants(["launcher=samestep,torchrun", "env:OMP_PROC_BIND=true,false"], verb="run", flags=())
    trials = plan(request(workers=(1, 2), variants=compared, repeats=2))

    assert len(trials) == 16
    assert {one.variant for one in trials[:8]} == {one.name for one in compared}
    assert {one.launcher for one in trials if "torchrun" in one.variant} == {"torchrun"}
    (line,) = [
        line for line in in_lines(trials, lambda one: one.launch_command("python")) if line.startswith("  1 ")
    ]
    assert "OMP_PROC_BIND=" in line
    assert "WANDB" not in line


@pytest.mark.parametrize(
    ("compared", "problem"),
    [
        ("sync=ddp", "--compare sync=ddp .* two"),
        ("sync=ddp,ddp", "--compare sync=ddp,ddp .* two"),
        ("launcher=samestep,pbs", "launcher=pbs.* samestep, torchrun, srun"),
        ("env:1A=1,2", "'1A'"),
        ("sync=ddp,flat", "--sync is a flag of recipes"),
        ("color=red,blue", "'color' is neither launcher, nor env:NAME, nor a flag of samestep run"),
    ],
)
def test_invalid_comparisons_are_refused(compared, problem):
    with pytest.raises(UsageError, match=problem):
        variants([compared], verb="run", flags=["algorithm"])


@pytest.mark.parametrize(("changes", "flag"), [({"steps": 0}, "--steps"), ({"repeats": 0}, "--repeats")])
def test_numbers_below_one_are_refused(changes, flag):
    with pytest.raises(UsageError, match=f"{flag} is 0; give at least 1"):
        request(**changes)


def with_cores(trials):
    """Return one worker with the cores of several: variant, others, their number, and its threads."""
    threads = [[word for word in one.command if word.startswith("--threads=")] for one in trials]
    return [
        (one.variant, one.also, one.cores_of, *given[-1:])
        for one, given in sorted(zip(trials, threads, strict=True), key=lambda pair: pair[0].cores_of)
        if one.cores_of > 1
    ]


def test_one_worker_has_the_cores_of_each_larger_number_in_each_round():
    trials = plan(request(threads=3, on_cores=4, repeats=2, flags=("--threads=3",)))

    assert len(trials) == 10
    found = with_cores(trials)
    assert found == [("", (), 2, "--threads=6")] * 2 + [("", (), 4, "--threads=12")] * 2
    assert {one.repeat for one in trials if one.cores_of == 4} == {0, 1}
    assert {(one.workers, one.modes) for one in trials if one.cores_of > 1} == {(1, ("strong",))}
    assert len({one.folder for one in trials}) == len({one.case for one in trials}) * 2 == 10
    assert "cores2" in next(one.folder.name for one in trials if one.cores_of == 2)


def test_one_worker_has_the_arguments_of_one_worker_in_both_modes():
    trials = plan(request(workers=(1, 2), arguments=("{64/n}",), scaling="both", threads=1, on_cores=2))

    (alone,) = [one for one in trials if one.cores_of == 2]
    assert (alone.modes, alone.command[-1]) == (("strong", "weak"), "64")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),  # accelerators
        ({"workers": (2, 4), "on_cores": 4}, []),  # one worker is not measured
        ({"on_cores": 2}, [2]),  # more workers are oversubscribed
        ({"on_cores": 4, "per_node": 2}, [2]),  # one process is on one node
        ({"workers": (1, 3, 4), "on_cores": 8}, [3, 4]),
    ],
)
def test_one_worker_has_no_more_cores_than_those_of_a_node(changes, expected):
    assert [cores for _, _, cores, *_ in with_cores(plan(request(threads=1, **changes)))] == expected


def test_without_threads_the_launcher_gives_the_cores():
    assert with_cores(plan(request(on_cores=4))) == [("", (), 2), ("", (), 4)]


def test_variants_with_as_many_threads_share_one_worker():
    compared = variants(["threads=1,2"], verb="run", flags=["threads"])
    found = with_cores(plan(request(variants=compared, on_cores=4)))

    assert found == [
        ("threads=1", (), 2, "--threads=2"),
        ("threads=1", ("threads=2",), 4, "--threads=4"),
        ("threads=2", (), 4, "--threads=8"),
    ]
    compared = variants(["sync=flat,ddp"], verb="train", flags=["sync"])
    recipe = request(kind="recipe", target="digits", workers=(1, 2), variants=compared, threads=1, on_cores=2)
    assert with_cores(plan(recipe)) == [("sync=flat", ("sync=ddp",), 2, "--threads=2")]
