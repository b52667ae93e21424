"""The average of the weights equals its closed form, and the model is not changed."""

import copy
import io

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import nn

from samestep.base.errors import CheckpointError
from samestep.training.loop.learner import Average

FEW = examples(max_examples=25)  # each takes steps of an optimizer


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3)).to(dtype)


def train(model, average, steps):
    """Train for `steps` steps; return the state after each, all of which the average includes."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    states = []
    for step in range(steps):
        images = torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(images.to(model[0].weight.dtype)).square().mean().backward()
        optimizer.step()
        average.update()
        states.append(copy.deepcopy(model.state_dict()))
    return states


@FEW
@given(decay=st.floats(0, 1), steps=st.integers(0, 8))
def test_the_weight_of_each_step_is_decay_times_that_of_the_next(decay, steps):
    model = network()
    initial = copy.deepcopy(model.state_dict())
    average = Average(model, decay)
    states = train(model, average, steps)

    for name, found in average.state_dict().items():
        if name.endswith("num_batches_tracked"):
            assert found == steps
            continue
        expected = decay**steps * initial[name]
        for age, state in enumerate(reversed(states)):
            expected = expected + (1 - decay) * decay**age * state[name]
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_the_model_is_not_changed_and_the_average_has_its_keys():
    plain, averaged = network(), network()
    average = Average(averaged, 0.9)
    optimizer = Average(plain, 0.5)  # any other one: the trained weights depend on neither

    one, other = train(plain, optimizer, 3)[-1], train(averaged, average, 3)[-1]

    assert all(torch.equal(one[name], other[name]) for name in one)
    assert list(average.state_dict()) == list(plain.state_dict())
    assert not any(parameter.requires_grad for parameter in average.model.parameters())


def test_an_average_continues_from_its_saved_state_with_equal_bits():
    undisturbed, resumed = network(), network()
    whole = Average(undisturbed, 0.9)
    train(undisturbed, whole, 3)
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    file.seek(0)

    again = Average(resumed, 0.9)
    again.load_state_dict(torch.load(file, weights_only=True))
    resumed.load_state_dict(undisturbed.state_dict())
    train(undisturbed, whole, 2)
    train(resumed, again, 2)

    expected = whole.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in again.state_dict().items())


def test_the_state_of_another_model_is_refused():
    with pytest.raises(CheckpointError, match="averaged weights do not fit"):
        Average(network(), 0.9).load_state_dict(nn.Linear(2, 2).state_dict())


def test_half_precision_weights_are_averaged_in_single_precision():
    model = network(torch.bfloat16)
    average = Average(model, 0.999)
    start = average.model[3].weight.clone()
    with torch.no_grad():
        model[3].weight.add_(0.5)

    for _ in range(10):
        average.update()

    moved = (average.model[3].weight - start) / (model[3].weight.float() - start)
    assert average.model[3].weight.dtype is torch.float32
    torch.testing.assert_close(moved, torch.full_like(moved, 1 - 0.999**10), rtol=1e-3, atol=0)
    assert average.model(torch.zeros(2, 1, 4, 4, dtype=torch.bfloat16)).shape == (2, 3)


def test_a_buffer_that_its_module_replaces_is_updated():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

        def forward(self):
            self.seen = self.seen + 1

    model = Counts()
    average = Average(model, 0.5)
    model()
    average.update()

    assert average.model.seen == 1


def test_the_average_keeps_the_memory_format():
    model = network().to(memory_format=torch.channels_last)
    average = Average(model, 0.5)
    average.update()

    assert average.model[0].weight.stride() == model[0].weight.stride()
