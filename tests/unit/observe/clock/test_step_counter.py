"""Steps, samples and times of a script are counted for any kind of optimizer step."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from samestep.observe.clock import step_reader
from samestep.observe.clock.sample_count import COUNTING, StepCounts
from samestep.observe.clock.step_clock import ScriptClock
from support.clocked_scripts import ticking_phases


@pytest.fixture
def count(monkeypatch):
    """Return a function that runs a script, in which each change of phase takes a second, and counts."""

    def run(script):
        monkeypatch.setattr(step_reader, "Phases", ticking_phases())
        counts = StepCounts()
        clock = ScriptClock(counts, COUNTING, stop=lambda: None)
        with clock.attached():
            clock.begin()
            script()
        clock.end("end")
        return counts, clock.samples

    return run


def train(step, *, accumulate=1):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = step(model)
    data = DataLoader(TensorDataset(torch.randn(20, 3)), batch_size=8)
    for k, (batch,) in enumerate(data):
        model(batch).sum().backward()
        if (k + 1) % accumulate == 0:
            optimizer()
    model.eval()
    with torch.no_grad():
        model(torch.randn(7, 3))


def with_sgd(model):
    return torch.optim.SGD(model.parameters()).step


def by_hand(model):
    def step():
        for parameter in model.parameters():
            parameter.data -= parameter.grad

    return step


@pytest.mark.parametrize(
    ("step", "accumulate", "steps"), [(with_sgd, 1, 3), (with_sgd, 3, 1), (by_hand, 1, 3)]
)
def test_steps_and_samples_are_counted(count, step, accumulate, steps):
    counts, samples = count(lambda: train(step, accumulate=accumulate))
    assert (counts.steps, samples.all_trained, samples.all_otherwise) == (steps, 20, 7)


def test_backwards_of_a_closure_are_part_of_its_step(count):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(5, 2)).square().mean()
        loss.backward()
        return loss

    counts, _ = count(lambda: [optimizer.step(closure) for _ in range(2)])
    assert counts.steps == 2


def test_steps_without_a_call_of_a_model_are_counted(count):
    def script():
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(4):
            weight.square().sum().backward()
            optimizer.step()

    counts, _ = count(script)
    assert (counts.steps, counts.timed["steps"], counts.timed["backward"]) == (4, 3, 3)


def test_times_are_measured_from_the_end_of_the_first_step(count):
    counts, samples = count(lambda: train(with_sgd))
    # Two steps of seven seconds: four phases and three times between them.
    each = dict.fromkeys(("data", "forward", "backward", "optimizer"), 2)
    assert counts.timed == {**each, "exposed_sync": 0, "seconds": 14, "steps": 2}
    words = counts.summary(samples, is_sharded=False)
    assert words.startswith("3 steps, 20 samples in training, 7 otherwise; ")
    assert "forward 14%" in words
    assert "communication" not in words


@pytest.mark.parametrize(("every", "timed"), [(4, 6), (1, 7)])
def test_steps_with_an_evaluation_are_timed_only_if_most_steps_have_one(count, every, timed):
    def script():
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(1, 9):
            model.train()(torch.ones(4, 3)).sum().backward()
            optimizer.step()
            if number % every == 0:
                with torch.no_grad():
                    model.eval()(torch.ones(4, 3))

    counts, _ = count(script)
    assert counts.timed["steps"] == timed


def test_calls_inside_a_module_are_not_counted_again(count):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    counts, samples = count(lambda: model(torch.ones(4, 3)))
    words = counts.summary(samples, is_sharded=True)
    assert words == "0 steps, 4 samples in training, 0 otherwise on worker 0"
