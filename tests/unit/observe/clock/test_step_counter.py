"""Steps, samples and times of a script are counted with any kind of step."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from samestep.hooks.training_events import subscribed
from samestep.observe.clock.step_counter import Counter


class Ticking:
    """A clock that advances by a second at each call."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        self.seconds += 1
        return self.seconds


@pytest.fixture
def counter():
    counter = Counter(now=Ticking())
    with subscribed(counter):
        yield counter


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
def test_steps_and_samples_are_counted(counter, step, accumulate, steps):
    train(step, accumulate=accumulate)
    count = counter.count
    assert (count.steps, count.samples, count.evaluated) == (steps, 20, 7)


def test_backwards_of_a_closure_are_part_of_its_step(counter):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(5, 2)).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    assert counter.count.steps == 2


def test_times_begin_with_the_end_of_the_first_step(counter):
    train(with_sgd)
    count = counter.count
    # Two steps of four phases, each from one tick to the next, and one more tick at the end of each.
    assert count.seconds == {"loading": 3, "forward": 2, "backward": 2, "optimizer": 2, "evaluation": 1}
    assert count.total_s == 18
    words = count.summary(is_sharded=False)
    assert words.startswith("3 steps, 20 samples in training, 7 otherwise; ")
    assert "forward 12%" in words


def test_calls_inside_a_module_are_not_counted_again(counter):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model(torch.ones(4, 3))
    assert counter.count.samples == 4
    assert counter.count.summary(is_sharded=True) == "0 steps, 4 samples in training, 0 otherwise on worker 0"
