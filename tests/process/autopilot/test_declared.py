"""Scripts that declare the sample dimension of a model's inputs."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import samestep
from samestep.base.errors import UsageError


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Tagger(nn.Module):
    """Time first, with its loss inside; `mask` is (time, time)."""

    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(5, 6), nn.Linear(6, 4)

    def forward(self, x, targets, mask=None):
        y, (h, _) = self.rnn(x)
        if mask is not None:
            y = torch.einsum("ts,sbf->tbf", mask, y)
        return F.cross_entropy(self.out(y).flatten(0, 1), targets.flatten()), h


def made():
    model = Tagger().double()
    for number, parameter in enumerate(model.parameters()):
        parameter.data = drawn(*parameter.shape, seed=number) * 0.3
    return model


def batch(number, time=6, samples=6):
    targets = torch.randint(0, 4, (time, samples), generator=torch.Generator().manual_seed(number))
    return drawn(time, samples, 5, seed=number), targets


def undeclared(model):
    return model


def wrapped(model):
    return nn.DataParallel(samestep.batch_dim(model, dim=1))


def by_its_former_name(model):
    with pytest.warns(DeprecationWarning, match=r"samestep\.split is now samestep\.batch_dim"):
        return samestep.split(model, dim=1)


def trained(call, declare=undeclared):
    model = declare(made())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for number in range(3):
        optimizer.zero_grad()
        loss, _ = call(model, number)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def as_many_times_as_samples(model, number):
    return model(*batch(number))


def with_a_mask(model, number):
    return model(*batch(number), mask=drawn(6, 6, seed=9))


def one_sample_each(model, number):
    return model(*batch(number, samples=2))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("call", "dim"),
    [
        (as_many_times_as_samples, 1),
        (as_many_times_as_samples, {"x": 1, "targets": 1}),
        (with_a_mask, {"x": 1, "targets": 1}),
    ],
)
def test_a_declared_dimension_lets_calls_be_split(run, size, call, dim):
    losses = trained(call)

    found, split, *_ = run(size, trained, call)
    assert found == pytest.approx(losses, rel=0, abs=1e-12)
    assert not split
    found, split, *_ = run(size, trained, call, partial(samestep.batch_dim, dim=dim))
    assert found == pytest.approx(losses, rel=0, abs=1e-12)
    assert split == 3


def test_a_declared_batch_of_as_many_samples_as_workers_is_split(run):
    declare = partial(samestep.batch_dim, dim=1)
    found, split, *_ = run(2, trained, one_sample_each, declare)
    assert found == pytest.approx(trained(one_sample_each), rel=0, abs=1e-12)
    assert split == 3


@pytest.mark.parametrize(("call", "dim"), [(as_many_times_as_samples, 0), (with_a_mask, 1)])
def test_a_wrong_declaration_keeps_calls_unsplit(run, call, dim):
    found, split, *_ = run(2, trained, call, partial(samestep.batch_dim, dim=dim))
    assert found == pytest.approx(trained(call), rel=0, abs=1e-12)
    assert not split


def test_a_declaration_holds_for_a_wrapper(run):
    _, split, *_ = run(2, trained, as_many_times_as_samples, wrapped)
    assert split == 3


def test_an_unknown_argument_is_refused_with_its_name():
    with pytest.raises(UsageError, match=r"Tagger.*'y'.* x, targets, mask"):
        samestep.batch_dim(made(), dim={"y": 0})


def test_on_one_worker_it_has_no_effect():
    declare = partial(samestep.batch_dim, dim=1)
    assert trained(as_many_times_as_samples, declare) == trained(as_many_times_as_samples)


def test_the_former_name_works_with_a_warning(run):
    _, split, *_ = run(2, trained, as_many_times_as_samples, by_its_former_name)
    assert split == 3
    assert "split" not in dir(samestep)
