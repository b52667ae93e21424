"""The step clock of a recipe writes each worker's steps, and ends all workers after the same step."""

import json
from functools import partial

import pytest

from samestep.base.errors import UsageError
from samestep.base.step_phases import ALL as STEP_PHASES
from samestep.observe.clock_file import ClockOptions
from samestep.training.recipes.request import Request
from samestep.training.recipes.resolve import resolve
from samestep.training.recipes.run_recipe import clocked, run_recipe


def trained(world, folder, steps, warm_up, samples=90):
    """Train two epochs of 3 steps; return whether the training was completed."""
    changes = {"epochs": 2, "batch_size": 32}
    request = Request(recipe="digits", subset=samples, out=folder / "run", changes=changes)
    order = resolve(request, workers=world.place.size)
    clocking = ClockOptions(folder=folder / "clock", steps=steps, warm_up=warm_up)
    train, warnings = partial(run_recipe, world, order), []
    result = clocked(
        train, world, clocking, samples_per_epoch=samples, config=order.training(), report=warnings.append
    )
    world.barrier()  # the ranks go on together
    assert not warnings
    return result is not None


def read(folder):
    """Return the first line, the steps, and the last line of each worker."""
    files = sorted((folder / "clock").glob("rank-*.jsonl"))
    lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return [(first, steps, last) for first, *steps, last in lines]


@pytest.mark.parametrize("size", [1, 2])
def test_each_worker_records_its_share_of_every_step(processes, tmp_path, size):
    ended = processes.run(trained, size, tmp_path, None, 0)

    ranks = read(tmp_path)
    assert ended == [True] * size
    for rank, (first, steps, last) in enumerate(ranks):
        assert (first["rank"], first["size"], first["kind"]) == (rank, size, "recipe")
        assert (first["config"]["model"], first["config"]["batch_size"]) == ("convnet", 32)
        assert [step["step"] for step in steps] == list(range(6))
        assert [step.get("evaluated", False) for step in steps] == [False, False, False, True, False, False]
        for step in steps:
            assert sum(step[name] for name in STEP_PHASES) == pytest.approx(step["seconds"])
            assert min(step[name] for name in ("forward", "backward", "optimizer")) > 0
            assert (step["data"] > 0) == (step["step"] > 0)  # the clock begins with the first call
            assert step["exposed_sync"] > 0 or size == 1
        assert (last["ended"], last["samples_per_epoch"]) == ("end", 90)
    together = [sum(steps[k]["samples"] for _, steps, _ in ranks) for k in range(6)]
    assert together == [32, 32, 26] * 2


def test_the_file_of_a_failed_training_contains_the_error(processes, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").touch()
    with pytest.raises(UsageError, match="already contains a run"):
        processes.run(trained, 1, tmp_path, None, 0)

    ((_, steps, last),) = read(tmp_path)
    assert (steps, last["ended"]) == ([], "error: UsageError")


def test_the_files_of_another_run_are_kept(processes, tmp_path):
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "rank-0.jsonl").write_text("of another run")
    with pytest.raises(UsageError, match=r"rank-0\.jsonl"):
        processes.run(trained, 1, tmp_path, None, 0)

    assert (tmp_path / "clock" / "rank-0.jsonl").read_text() == "of another run"
