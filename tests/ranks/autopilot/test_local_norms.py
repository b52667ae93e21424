"""Batch norm over each worker's slice (--batch-norm local)."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from samestep.autopilot.script.call_account import Account
from samestep.autopilot.script.options import Options
from samestep.autopilot.split.batch_norms import batch_norm_of_slices
from samestep.autopilot.split.gradients import Gradients
from samestep.autopilot.split_calls import SMALL_SLICE, CallSplitter, intercepted_calls, splitting_calls
from samestep.parallel.sharding.share import share
from samestep.ranks.world.thread_world import run_ranks

LOCAL = Options(batch_norm="local")
EXCEPTION = "batch norm: over each worker's slice (--batch-norm local)"


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def made(momentum=0.1):
    model = nn.Sequential(
        nn.Linear(5, 6), nn.BatchNorm1d(6, momentum=momentum), nn.ReLU(), nn.Linear(6, 3)
    ).double()
    for number, parameter in enumerate(model.parameters()):
        parameter.data = drawn(*parameter.shape, seed=number) * 0.5
    return model


@pytest.fixture(autouse=True, scope="module")
def patched():
    with intercepted_calls(), batch_norm_of_slices():
        yield


@contextmanager
def shared(world, options=LOCAL):
    account, gradients = Account(), Gradients(world, check_every=1)
    with splitting_calls(CallSplitter(world, gradients, account, options)):
        yield account, gradients
    gradients.detach()


def trained(forward, model, totals):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for number, total in enumerate(totals):
        optimizer.zero_grad()
        loss = forward(model, drawn(total, 5, seed=number)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.detach().clone() for name, value in model.state_dict().items()}


def by_hand(model, x, size=2):
    """Call a model on each slice by itself; its statistics are averaged by share."""
    norm, parts, mean, var = model[1], [], 0.0, 0.0
    before = norm.running_mean.clone(), norm.running_var.clone(), norm.num_batches_tracked.clone()
    for rank in range(size):
        own = share(len(x), rank, size)
        norm.running_mean, norm.running_var, norm.num_batches_tracked = (one.clone() for one in before)
        parts.append(model(x[own.start : own.stop]))
        mean = mean + norm.running_mean * len(own) / len(x)
        var = var + norm.running_var * len(own) / len(x)
    norm.running_mean, norm.running_var = mean, var
    return torch.cat(parts)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_each_slice_is_normalized_separately_and_running_statistics_are_averaged(momentum):
    totals = [7, 7, 8, 5]

    def on_each_rank(world):
        model = made(momentum)
        with shared(world) as (account, _):
            return *trained(lambda model, x: model(x), model, totals), account

    losses, state = trained(by_hand, made(momentum), totals)
    found = run_ranks(on_each_rank, 2)
    for own, weights, account in found:
        assert own == pytest.approx(losses, rel=0, abs=1e-12)
        for name, value in state.items():
            torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-12)
            assert torch.equal(weights[name], found[0][1][name])
        assert account.lines()[-1] == EXCEPTION
        assert not account.unsplit


def test_slices_of_one_sample_are_unsplit():
    def on_each_rank(world):
        model = made()
        with shared(world) as (account, _):
            return *trained(lambda model, x: model(x), model, [7, 3, 7]), account

    def forward(model, x):
        return model(x) if len(x) == 3 else by_hand(model, x)

    losses, _ = trained(forward, made(), [7, 3, 7])
    for own, _, account in run_ranks(on_each_rank, 2):
        assert own == pytest.approx(losses, rel=0, abs=1e-12)
        assert [list(counts) for counts in account.counts.values()] == [[SMALL_SLICE]]


def test_evaluation_records_no_exception():
    def on_each_rank(world):
        with shared(world) as (account, _), torch.no_grad():
            return made().eval()(drawn(6, 5)), account.exceptions

    for found, exceptions in run_ranks(on_each_rank, 2):
        torch.testing.assert_close(found, made().eval()(drawn(6, 5)), rtol=0, atol=1e-12)
        assert not exceptions


class Compares(nn.Sequential):
    """Subtracts the mean of the whole batch, which no slice has."""

    def forward(self, x):
        return super().forward(x - x.mean(0))


def test_an_unsplit_call_is_serial():
    def model():
        return Compares(*made())

    def on_each_rank(world):
        with shared(world) as (account, _):
            return *trained(lambda model, x: model(x), model(), [6, 6]), account

    losses, _ = trained(lambda model, x: model(x), model(), [6, 6])
    for own, _, account in run_ranks(on_each_rank, 2):
        assert own == pytest.approx(losses, rel=0, abs=1e-12)
        assert not account.split
        assert not account.exceptions


@pytest.mark.parametrize(("options", "early"), [(Options(), [False]), (LOCAL, [True])])
def test_all_reduces_overlap_backward_if_it_does_not_communicate(options, early):
    def on_each_rank(world):
        with shared(world, options) as (_, gradients):
            F.mse_loss(made()(drawn(6, 5)), drawn(6, 3)).backward()
            return [one._config.may_overlap for one in gradients._synchronizers]

    assert run_ranks(on_each_rank, 2) == [early, early]
