"""What ``--sanitize`` finds in a script's ranks, each fault in a run that is otherwise right."""

import io
import re
from contextlib import redirect_stderr

import pytest
import torch
from torch import nn

from samestep.base.errors import OutOfStep
from samestep.watch.sanitize import sanitizing

STEPS = 3


def train(world, fault):
    """Train by hand on each rank, with `fault` in step 2; return what was raised and what was said."""
    said = io.StringIO()
    try:
        with redirect_stderr(said), sanitizing(native=fault != "steered"):
            _train(world, fault)
    except OutOfStep as error:
        return str(error), said.getvalue()
    return "", said.getvalue()


def _train(world, fault):
    rank, drawn = world.place.rank, torch.Generator().manual_seed(7)
    torch.manual_seed(rank if fault == "no broadcast" else 0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    if fault not in ("same streams", "steered"):
        torch.manual_seed(100 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(64, 4, generator=drawn)
    for step in range(1, STEPS + 1):
        here = fault if step == 2 and rank == 1 else ""
        own = data[:8] if fault in ("same samples", "steered") else data[32 * rank + 8 * step :][:8]
        loss = model(own).square().mean()
        if here == "nan loss":
            loss = loss * float("nan")
        if here == "another line":
            loss.backward()
        else:
            loss.backward()
        _average(world, model, skip=here)
        if here == "nan gradient":
            model[0].bias.grad[0] = float("inf")
        if here != "skipped step":
            optimizer.step()
        if here == "written weight":
            model[2].bias.data[1] += 1e-7
        optimizer.zero_grad()


def _average(world, model, skip):
    for one in model.parameters():
        grad = one.grad.clone()
        world.all_reduce(grad)
        if skip != "own gradients":
            one.grad.copy_(grad / world.place.size)


def outcomes(pool, fault):
    found = pool.run(train, 2, fault)
    assert found[0][0] == found[1][0]  # all ranks raise alike
    assert found[1][1] == ""  # rank 0 alone speaks
    return found[0]


def test_a_run_that_is_right_is_left_alone(processes):
    assert outcomes(processes, "none") == ("", "")
    assert torch.autograd.backward.__module__ == "torch.autograd"


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("no broadcast", r"drifted apart: rank 1 differs .* parameter 0 \[8, 4\].* after optimizer step 1\."),
        (
            "own gradients",
            r"drifted apart: rank 1 differs .* parameter 0 \[8, 4\].* after optimizer step 2\.",
        ),
        ("written weight", r"drifted apart: .* parameter 3 \[2\].* after optimizer step 3\."),
        ("nan loss", r"the loss is NaN or infinite on rank 1 of 2 alone, in backward 2\."),
        ("nan gradient", r"a gradient is NaN or infinite on rank 1 of 2 alone, in optimizer step 2\."),
        (
            "skipped step",
            r"gone apart: rank 0 is at optimizer step 2 \(.*test_sanitize.py:\d+\), rank 1 at backward 3 ",
        ),
    ],
)
def test_what_makes_a_run_meaningless_ends_it(processes, fault, found):
    raised, said = outcomes(processes, fault)

    assert re.search(found, raised)
    assert said == ""


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("same samples", r"ranks 0-1 train on the same 8 samples in backward 1 \(Sequential at .*\.py:\d+\)"),
        ("same streams", r"ranks 0-1 draw the same random numbers for different samples in backward 1 "),
        (
            "another line",
            r"the ranks make backward 2 in different lines of the script: rank 0 at .*:\d+, rank 1",
        ),
    ],
)
def test_what_is_probably_not_meant_is_said_once(processes, fault, found):
    raised, said = outcomes(processes, fault)

    assert raised == ""
    assert re.match(f"samestep: warning: {found}", said)
    assert said.count("warning") == 1


def test_copies_of_a_serial_script_have_the_same_samples(processes):
    assert outcomes(processes, "steered") == ("", "")
