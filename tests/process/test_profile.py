"""Each of several real processes traces the requested steps."""

import gzip
import json

import pytest
import torch

from samestep.training.output.profile import Profiler


def take_steps(world, folder, span, *, done=0, upto=8, total=8):
    """Run a training in which each step multiplies matrices of another size."""
    with Profiler(span, folder, world, done=done, total=total) as profiler:
        for step in range(done + 1, upto + 1):
            torch.ones(step, step) @ torch.ones(step, step)
            profiler.step_done(step)


def trace(folder, rank):
    """Return the names of the traced steps and the number of matrix products, of a rank's trace."""
    with gzip.open(folder / "profile" / f"rank-{rank}.json.gz", "rt") as stream:
        events = [event for event in json.load(stream)["traceEvents"] if event.get("ph") == "X"]
    steps = sorted({event["name"] for event in events if event["name"].startswith("ProfilerStep#")})
    return steps, sum(event["name"] == "aten::mm" for event in events)


@pytest.mark.parametrize("size", [1, 2])
def test_every_rank_traces_only_the_requested_steps(processes, tmp_path, size):
    processes.run(take_steps, size, tmp_path, "3:6")

    for rank in range(size):
        assert trace(tmp_path, rank) == (["ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"], 3)
    names = sorted(path.name for path in (tmp_path / "profile").iterdir())
    assert names == [*(f"rank-{rank}.json.gz" for rank in range(size)), "summary.txt"]
    assert "aten::mm" in (tmp_path / "profile" / "summary.txt").read_text()


@pytest.mark.parametrize(
    ("span", "begins", "ends", "seen"),
    [
        ("1:3", 0, 8, [1, 2]),
        ("8:9", 0, 8, [8]),
        ("2:3", 0, 8, [2]),
        ("3:6", 4, 8, [5]),  # a resumed run takes up what is left
        ("3:6", 2, 8, [3, 4, 5]),
    ],
)
def test_the_requested_steps_that_a_run_takes_are_traced(processes, tmp_path, span, begins, ends, seen):
    processes.run(some_steps, 1, tmp_path, span, begins, ends)

    assert trace(tmp_path, 0) == ([f"ProfilerStep#{step}" for step in seen], len(seen))


def test_a_run_that_stops_within_the_requested_steps_writes_their_trace(processes, tmp_path):
    processes.run(some_steps, 1, tmp_path, "3:6", 0, 4)

    assert trace(tmp_path, 0) == (["ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"], 2)  # 5 has begun


def some_steps(world, folder, span, begins, ends):
    take_steps(world, folder, span, done=begins, upto=ends)


@pytest.mark.parametrize(("begins", "ends"), [(5, 8), (7, 8), (0, 1), (0, 2)])
def test_a_run_without_a_requested_step_writes_nothing(processes, tmp_path, begins, ends):
    processes.run(some_steps, 1, tmp_path, "4:6", begins, ends)

    assert list(tmp_path.iterdir()) == []
    processes.run(take_steps, 1, tmp_path, "1:2")  # and leaves the profiler ready for the next
    assert trace(tmp_path, 0) == (["ProfilerStep#1"], 1)
