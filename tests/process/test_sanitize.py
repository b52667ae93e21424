"""``--sanitize`` finds each fault in a run that is otherwise correct."""

import io
import re
from contextlib import redirect_stderr

import pytest
import torch
from torch import nn

from samestep.base.errors import OutOfStep
from samestep.observe.sanitizer import sanitizing
from samestep.parallel.gradients.replicate import replicate

STEPS = 3


def train(world, fault):
    """Train on each rank, with `fault` in step 2; return the error's message and stderr."""
    stderr = io.StringIO()
    try:
        with redirect_stderr(stderr), sanitizing():
            _train(world, fault)
    except OutOfStep as error:
        return str(error), stderr.getvalue()
    return "", stderr.getvalue()


def _train(world, fault):
    rank, drawn = world.place.rank, torch.Generator().manual_seed(7)
    torch.manual_seed(rank if fault == "no broadcast" else 0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    if fault != "same streams":
        torch.manual_seed(100 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(64, 4, generator=drawn)
    for step in range(1, STEPS + 1):
        here = fault if step == 2 and rank == 1 else ""
        own = data[:8] if fault == "same samples" else data[32 * rank + 8 * step :][:8]
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
    assert found[0][0] == found[1][0]  # all ranks raise the same error
    assert found[1][1] == ""  # only rank 0 prints
    return found[0]


def test_a_correct_run_prints_nothing(processes):
    assert outcomes(processes, "none") == ("", "")
    assert torch.autograd.backward.__module__ == "torch.autograd"


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("no broadcast", r"rank 1 .* parameter 0 \[8, 4\].* optimizer step 1\."),
        ("own gradients", r"rank 1 .* parameter 0 \[8, 4\].* optimizer step 2\."),
        ("written weight", r"rank 1 .* parameter 3 \[2\].* optimizer step 3\."),
        ("nan loss", r"loss .*NaN.* rank 1 of 2 .* backward 2\."),
        ("nan gradient", r"gradient .*NaN.* rank 1 of 2 .* optimizer step 2\."),
        ("skipped step", r"rank 0 .* optimizer step 2 \(.*test_sanitize.py:\d+\), rank 1 .* backward 3 "),
    ],
)
def test_a_difference_that_invalidates_the_run_ends_it(processes, fault, found):
    raised, stderr = outcomes(processes, fault)

    assert re.search(found, raised)
    assert stderr == ""


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("same samples", r"ranks 0-1 .* 8 samples .*backward 1 \(Sequential at .*\.py:\d+\)"),
        ("same streams", r"ranks 0-1 .*random numbers.* backward 1 \(Sequential at .*\.py:\d+\)"),
        ("another line", r".*backward 2 .*rank 0 at .*:\d+, rank 1 at .*:\d+"),
    ],
)
def test_a_probable_mistake_is_reported_once(processes, fault, found):
    raised, stderr = outcomes(processes, fault)

    assert raised == ""
    assert re.match(f"samestep: warning: {found}", stderr)
    assert stderr.count("warning") == 1


class Listed(nn.Linear):
    """Its parameters are a list, as a class of a script may return them."""

    def parameters(self, recurse=True):
        return [*super().parameters(recurse)]


def train_unlike(world):
    """Train with a rank without samples, on sparse inputs, and on nested ones."""
    with sanitizing():
        torch.manual_seed(0)
        model = Listed(4, 2)
        with replicate(model, world, check_every=0) as replicas:
            optimizer = torch.optim.SGD([model.weight, model.bias], lr=0.1)
            for step in range(3):
                if step == 1 and world.place.rank == 1:
                    replicas.contribute_nothing()
                else:
                    model(torch.eye(4).to_sparse()).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    return model.weight.sum().item()


def test_a_rank_without_samples_and_inputs_without_rows_are_no_mistake(processes):
    """Only this finds a right run that hangs, or ends in an error of torch, since it is watched."""
    first, second = processes.run(train_unlike, 2)
    assert first == second
