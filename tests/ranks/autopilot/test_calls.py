"""Calls of modules are split, or stay unsplit with a reason, and give the results of one rank either way."""

import re
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from samestep.autopilot.equivalence.check import TRAINS, EquivalenceCheck
from samestep.autopilot.equivalence.split_comparison import NOT_GATHERED
from samestep.autopilot.script.call_account import FEWER, Account
from samestep.autopilot.split.batch_norms import batch_norm_of_slices
from samestep.autopilot.split.gradients import Gradients, averaging_grad
from samestep.autopilot.split.slice_call import WRITES_INPUT
from samestep.autopilot.split.training_calls import detected_training
from samestep.autopilot.split_calls import CallSplitter, current_gradients, intercepted_calls, splitting_calls
from samestep.base.errors import UsageError
from samestep.ranks.world.thread_world import run_ranks


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def labels(*shape, classes=4, seed=0):
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(seed))


def weighted(module):
    """Give a module weights of double precision that do not depend on earlier random numbers."""
    for number, parameter in enumerate(module.parameters()):
        parameter.data = drawn(*parameter.shape, seed=number) * 0.3
    return module.double()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)


class Plain(Net):
    def forward(self, x):
        return self.two(torch.relu(self.norm(self.one(x))))


@dataclass
class Output:
    scores: torch.Tensor
    loss: torch.Tensor | None = None


class LossInside(Net):
    def forward(self, x, *, targets=None):
        scores = self.two(torch.relu(self.one(x)))
        loss = None if targets is None else F.cross_entropy(scores, targets, ignore_index=-1)
        return Output(scores, loss)


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(5, 6, num_layers=2), nn.Linear(6, 4)

    def forward(self, x, hidden=None):
        y, hidden = self.rnn(x, hidden)
        return self.out(y).view(-1, 4), hidden


class LeavesPenalty(Plain):
    def forward(self, x):
        scores = super().forward(x)
        self.penalty = scores.square().mean()
        self.kept = [scores.detach(), x.sum(0)]
        return scores


class KeepsState(Net):
    """Starts from the state of its last call."""

    state = None

    def forward(self, x):
        before = 0.0 if self.state is None else self.state.detach()
        self.state = torch.tanh(self.one(x) + before)
        return self.two(self.state)


class ComparesSamples(Plain):
    def forward(self, x):
        y = super().forward(x)
        return y @ y.T


class FixedSize(Plain):
    def forward(self, x):
        return super().forward(x.view(7, 5))


class WritesInput(Plain):
    def forward(self, x):
        return super().forward(x.mul_(2))


class LoopsByValue(Net):
    """Normalizes as often as its samples require."""

    def forward(self, x):
        h, halted = self.one(x), torch.zeros(len(x), dtype=torch.float64)
        while (halted < 1).any():
            halted = halted + 0.2 + torch.sigmoid(h.detach().sum(1))
            h = torch.tanh(self.norm(h))
        return self.two(h)


class HidesBehindZeros(Net):
    """Compares samples; its last weights begin as zeros, so that the first outputs do not show it."""

    def forward(self, x):
        h = self.one(x)
        return self.two(torch.relu((h - h.mean(0)) / (h.std(0) + 1e-5)))


class SwitchesLater(Net):
    """Compares samples from its second epoch on."""

    epoch = 0

    def forward(self, x):
        h = torch.relu(self.one(x))
        return self.two(h - h.mean(0) if self.epoch > 0 else h)


class SwitchedByArgument(Net):
    def forward(self, x, centred):
        h = torch.relu(self.one(x))
        return self.two(h - h.mean(0) if centred else h)


class GivesAccuracy(Net):
    def forward(self, x, y):
        scores = self.two(torch.relu(self.one(x)))
        return F.cross_entropy(scores, y), (scores.argmax(1) == y + 9).double().mean().item()


class CountsSamples(Net):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, x):
        self.seen += len(x)
        return self.two(torch.relu(self.one(x))) / self.seen


class KeepsLosses(Net):
    def __init__(self):
        super().__init__()
        self.losses = []

    def forward(self, x):
        scores = self.two(torch.relu(self.one(x)))
        self.losses.append(scores.mean().item())
        return scores * (1 + self.losses[-1])


class ClipsWithin(Net):
    def forward(self, x):
        h = torch.relu(self.one(x))
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        return self.two(h)


class CountsCalls(Net):
    def __init__(self):
        super().__init__()
        self.calls, self.tau = 0, 1.0

    def forward(self, x):
        self.calls += 1
        self.tau *= 0.99
        return self.two(torch.relu(self.one(x))) / self.tau


def losses_of(model, steps):
    """Train by plain PyTorch; return the loss of each step and the final weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = []
    for number in range(4):
        optimizer.zero_grad()
        loss = steps(model, number)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found, [parameter.detach().clone() for parameter in model.parameters()]


def plain(model, number):
    return F.cross_entropy(model(drawn(7, 5, seed=number)), labels(7, seed=number))


def loss_inside(model, number):
    targets = labels(8, seed=number)
    targets[: 3 + number] = -1  # most of them in the first slices
    return model(drawn(8, 5, seed=number), targets=targets).loss


def time_first(model, number):
    x, targets = drawn(3, 7, 5, seed=number), labels(3, 7, seed=number)
    first, hidden = model(x)
    second, _ = model(x, hidden)
    return F.cross_entropy(first, targets.view(-1)) + F.cross_entropy(second, targets.view(-1))


def with_penalty(model, number):
    return plain(model, number) + model.penalty + model.kept[0].std() + model.kept[1].sum()


def with_noise_on_inputs(model, number):
    x = drawn(7, 5, seed=number).requires_grad_()
    scores = model(x)
    (slope,) = torch.autograd.grad(scores.logsumexp(1).sum(), x, create_graph=True)
    return F.cross_entropy(scores, labels(7, seed=number)) + slope.square().sum()


def detached(model, number):
    """Return a loss whose backward has no effect: the model has trained itself."""
    return model(drawn(7, 5, seed=number)).sum() + 0 * model.two.bias.sum()


def by_epoch(model, number):
    model.epoch = number // 2
    return plain(model, number)


def by_argument(model, number):
    return F.cross_entropy(model(drawn(7, 5, seed=number), number > 1), labels(7, seed=number))


def accuracy(model, number):
    loss, right = model(drawn(8, 5, seed=number), labels(8, seed=number))
    return loss * (1 + right)


class Adapts(Net):
    """Trains its norm with each batch that it is called with, as test-time adaptation does."""

    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.Adam(self.norm.parameters(), lr=0.1)

    def forward(self, x):
        scores = self.two(torch.relu(self.norm(self.one(x))))
        (own,) = torch.autograd.grad(scores.logsumexp(1).sum(), self.norm.weight, retain_graph=True)
        self.norm.weight.grad = own
        self.optimizer.step()
        return scores.detach()


class CallsBackward(Net):
    """Calls backward in forward, and returns a number."""

    def forward(self, x):
        loss = self.two(self.one(x)).logsumexp(1).mean()
        loss.backward()
        return loss.detach()


SPLIT = [
    (Plain, plain),
    (LossInside, loss_inside),
    (TimeFirst, time_first),
    (LeavesPenalty, with_penalty),
    (KeepsState, plain),
    (CountsCalls, plain),
    (Plain, with_noise_on_inputs),
]
UNSPLIT = [
    (ComparesSamples, lambda model, number: model(drawn(7, 5, seed=number)).mean(), NOT_GATHERED),
    (FixedSize, plain, "shape '\\[7, 5\\]' is invalid"),
    (WritesInput, plain, WRITES_INPUT),
    (GivesAccuracy, accuracy, r"output\[1\]"),
    (CountsSamples, plain, "seen"),
    (KeepsLosses, plain, "losses"),
    (ClipsWithin, plain, "hook"),
    (LoopsByValue, plain, "different numbers of times|slice"),
    (Adapts, detached, TRAINS),
    (CallsBackward, detached, TRAINS),
]


@pytest.fixture(autouse=True, scope="module")
def patched():
    with intercepted_calls(), batch_norm_of_slices(), averaging_grad(current_gradients):
        yield


@pytest.fixture(autouse=True)
def detected():
    with detected_training():
        yield


@contextmanager
def shared(world):
    """Split this rank's calls; yield the account."""
    account, gradients = Account(), Gradients(world, check_every=1)
    with splitting_calls(CallSplitter(world, gradients, account)):
        yield account
    gradients.detach()


def reasons_of(account):
    return [why for counts in account.counts.values() for why in counts]


def train(world, make, steps):
    model = weighted(make())
    with shared(world) as account:
        found = losses_of(model, steps)
    return *found, account, {name: buffer.clone() for name, buffer in model.named_buffers()}


def assert_serial(make, steps, ranks):
    model = weighted(make())
    losses, weights = losses_of(model, steps)
    for found, own, _, buffers in ranks:
        assert found == pytest.approx(losses, rel=0, abs=1e-12)
        for one, other in zip(own, weights, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(buffers[name], buffer, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("make", "steps"), SPLIT, ids=lambda one: one.__name__)
def test_split_calls_train_as_on_one_rank(size, make, steps):
    ranks = run_ranks(train, size, make, steps)

    assert_serial(make, steps, ranks)
    for _, _, account, _ in ranks:
        assert account.split.total() >= 4
        assert not account.unsplit


@pytest.mark.parametrize(("make", "steps", "why"), UNSPLIT, ids=lambda one: getattr(one, "__name__", ""))
def test_unsplit_calls_train_as_on_one_rank_and_have_a_reason(make, steps, why):
    ranks = run_ranks(train, 2, make, steps)

    assert_serial(make, steps, ranks)
    for _, _, account, _ in ranks:
        assert not account.split
        (reason,) = reasons_of(account)
        assert re.search(why, reason)


def test_a_forward_hook_keeps_a_call_unsplit():
    def hooked():
        model = Plain()
        model.one.register_forward_hook(lambda *_: None)
        return model

    ranks = run_ranks(train, 2, hooked, plain)
    assert_serial(hooked, plain, ranks)
    assert re.search(r"\bone\b", *reasons_of(ranks[0][2]))


def test_hooks_on_parameters_get_gradients_of_whole_batches():
    def clipping():
        model = Plain()
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        return model

    ranks = run_ranks(train, 2, clipping, plain)
    assert_serial(clipping, plain, ranks)
    assert re.search(r"\bone\.weight\b", *reasons_of(ranks[0][2]))


def test_an_optimizer_within_backward_gets_gradients_of_whole_batches():
    def descend(parameter):
        parameter.data.sub_(parameter.grad)
        parameter.grad = None

    def steps(model, number):
        if number == 0:
            for one in model.parameters():
                one.register_post_accumulate_grad_hook(descend)
        return plain(model, number)

    ranks = run_ranks(train, 2, Plain, steps)
    assert_serial(Plain, steps, ranks)
    assert not ranks[0][2].split


def test_a_hook_added_after_the_first_call_keeps_the_next_unsplit():
    def steps(model, number):
        if number == 2:
            model.one.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        return plain(model, number)

    ranks = run_ranks(train, 2, Plain, steps)
    assert_serial(Plain, steps, ranks)
    assert (ranks[0][2].split.total(), ranks[0][2].unsplit.total()) == (2, 2)


def test_an_unsplit_and_a_split_call_of_a_batch_norm_have_one_backward():
    def steps(model, number):
        if number == 0:
            return plain(model, number)
        with Elements() if number == 2 else nullcontext():
            first = plain(model, number)
        return first + plain(model, number + 10)

    ranks = run_ranks(train, 2, Plain, steps)
    assert_serial(Plain, steps, ranks)
    assert (ranks[0][2].split.total(), ranks[0][2].unsplit.total()) == (6, 1)


class Elements(TorchDispatchMode):
    """Counts the elements that operations return."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.count += result.numel() if isinstance(result, Tensor) else 0
        return result


@pytest.mark.parametrize("counted", [0, 2])
def test_a_call_is_unsplit_within_a_dispatch_mode(counted):
    def steps(model, number):
        with Elements() if number == counted else nullcontext() as elements:
            loss = plain(model, number)
        return loss if elements is None else loss + elements.count

    ranks = run_ranks(train, 2, Plain, steps)
    assert_serial(Plain, steps, ranks)
    assert (ranks[0][2].split.total(), ranks[0][2].unsplit.total()) == (3, 1)


@pytest.mark.parametrize(("make", "steps"), [(SwitchesLater, by_epoch), (SwitchedByArgument, by_argument)])
def test_a_call_with_other_guards_is_checked_again(make, steps):
    ranks = run_ranks(train, 2, make, steps)
    assert_serial(make, steps, ranks)
    assert (ranks[0][2].split.total(), ranks[0][2].unsplit.total()) == (2, 2)


def test_a_comparison_of_samples_is_found_behind_weights_of_zero():
    def on_each_rank(world):
        model = weighted(HidesBehindZeros())
        torch.nn.init.zeros_(model.two.weight)
        with shared(world) as account:
            found = losses_of(model, plain)
        return *found, account, {}

    model = weighted(HidesBehindZeros())
    torch.nn.init.zeros_(model.two.weight)
    losses, _ = losses_of(model, plain)
    for found, _, account, _ in run_ranks(on_each_rank, 2):
        assert found == pytest.approx(losses, rel=0, abs=1e-12)
        assert not account.split


def test_fewer_samples_than_ranks_are_unsplit():
    def steps(model, number):
        return F.mse_loss(model(drawn(2, 5, seed=number)), drawn(2, 4, seed=number))

    ranks = run_ranks(train, 3, Plain, steps)
    assert_serial(Plain, steps, ranks)
    assert set(reasons_of(ranks[0][2])) == {FEWER}


def test_a_later_call_of_another_size_is_checked_again():
    def steps(model, number):
        return model(drawn(1 if number == 0 else 6, 5, seed=number)).scores.square().mean()

    ranks = run_ranks(train, 2, LossInside, steps)
    assert_serial(LossInside, steps, ranks)
    assert ranks[0][2].split.total() == 3
    assert set(reasons_of(ranks[0][2])) == {FEWER}


class StartsWithFirstBatch(Plain):
    """Sets a flag in its first call, in which it does something else."""

    has_started = False

    def forward(self, x):
        scores = super().forward(x)
        if not self.has_started:
            self.has_started = True
            return scores * 2
        return scores


@pytest.mark.parametrize(("make", "checks"), [(Plain, 1), (StartsWithFirstBatch, 2)])
def test_a_call_is_checked_again_if_the_first_one_changes_more_than_counters_of_batch_norm(
    monkeypatch, make, checks
):
    checked, run = [], EquivalenceCheck.run
    monkeypatch.setattr(EquivalenceCheck, "run", lambda check: checked.append(check) or run(check))

    ranks = run_ranks(train, 2, make, plain)

    assert_serial(make, plain, ranks)
    assert len(checked) == 2 * checks
    assert not ranks[0][2].unsplit


class ComparesNine(Net):
    """Compares the samples in batches of nine."""

    def forward(self, x):
        h = self.two(torch.relu(self.one(x)))
        return h - h.mean(0) if len(x) == 9 else h


def test_a_size_that_failed_its_check_stays_unsplit_after_another_has_passed():
    def steps(model, number):
        return model(drawn((9, 8, 9, 8)[number % 4], 5, seed=number)).square().mean()

    ranks = run_ranks(train, 2, ComparesNine, steps)
    assert_serial(ComparesNine, steps, ranks)


def test_autograd_grad_returns_averages():
    def on_each_rank(world):
        model = weighted(Plain())
        with shared(world):
            return torch.autograd.grad(plain(model, 0), model.parameters())

    model = weighted(Plain())
    expected = torch.autograd.grad(plain(model, 0), tuple(model.parameters()))
    for found in run_ranks(on_each_rank, 3):
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_penalty_on_gradients_of_parameters_is_refused():
    def on_each_rank(world):
        model = weighted(Plain())
        with shared(world), pytest.raises(UsageError, match="create_graph"):
            torch.autograd.grad(plain(model, 0), model.parameters(), create_graph=True)

    run_ranks(on_each_rank, 2)


def test_a_penalty_on_gradients_of_an_unsplit_call_is_that_of_one_rank():
    def slopes(model):
        weights = dict(model.named_parameters())
        scores = torch.func.functional_call(model, weights, (drawn(7, 5),))
        return torch.autograd.grad(
            F.cross_entropy(scores, labels(7)), list(weights.values()), create_graph=True
        )

    def on_each_rank(world):
        model = weighted(Plain())
        with shared(world):
            model(drawn(7, 5))
            sum(one.square().sum() for one in slopes(model)).backward()
        return [one.grad for one in model.parameters()]

    model = weighted(Plain())
    model(drawn(7, 5))
    sum(one.square().sum() for one in slopes(model)).backward()
    for ranks in run_ranks(on_each_rank, 2):
        for own, one in zip(ranks, model.parameters(), strict=True):
            torch.testing.assert_close(own, one.grad, rtol=0, atol=1e-12)


def test_evaluation_is_split_with_the_outputs_of_one_rank():
    def on_each_rank(world):
        model = weighted(LossInside()).eval()
        with shared(world) as account, torch.no_grad():
            return [model(drawn(7, 5, seed=number)).scores for number in range(3)], account.split.total()

    model = weighted(LossInside()).eval()
    for found, count in run_ranks(on_each_rank, 2):
        assert count == 3
        for number, scores in enumerate(found):
            expected = model(drawn(7, 5, seed=number)).scores
            torch.testing.assert_close(scores, expected, rtol=0, atol=1e-12)


class Grows(Plain):
    """Computes with a tensor that is no parameter of it, and with one that it gets after its first call."""

    def __init__(self):
        super().__init__()
        self.shift = [drawn(4).requires_grad_()]

    def forward(self, x):
        return super().forward(x) * getattr(self.two, "scale", 1.0) + self.shift[0]


def test_later_parameters_and_plain_tensors_are_trained():
    def steps(model, number):
        if number == 1:
            model.two.scale = nn.Parameter(torch.ones(4, dtype=torch.float64))
        return plain(model, number)

    def gradients(model):
        losses_of(model, steps)
        return model.two.scale.grad, model.shift[0].grad  # of all four steps: the optimizer knows neither

    def on_each_rank(world):
        with shared(world):
            return gradients(weighted(Grows()))

    expected = gradients(weighted(Grows()))
    for found in run_ranks(on_each_rank, 2):
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_calls_of_one_signature_from_several_lines_have_the_same_reason():
    """A signature is checked once, and other lines that call it have the reason too."""

    class Compares(Plain):
        def forward(self, x):
            return super().forward(x - x.flip(0))

    def on_each_rank(world):
        with shared(world) as account:
            model = weighted(Compares())
            for _ in range(2):
                model(drawn(6, 5))
            model(drawn(6, 5))
        return account

    for account in run_ranks(on_each_rank, 2):
        assert len(account.counts) == 2
        reasons = set(reasons_of(account))
        assert len(reasons) == 1
        assert all(reasons)


def test_calls_after_an_error_and_without_tensors_have_a_reason():
    class Raises(nn.Linear):
        def forward(self, x=None):
            if x is None:
                return self.weight.sum()
            if self.training:
                raise ValueError
            return super().forward(x)

    def on_each_rank(world):
        with shared(world) as account:
            model = weighted(Raises(5, 4))
            for _ in range(2):
                with pytest.raises(ValueError):  # noqa: PT011 - the script's own
                    model(drawn(6, 5))
            model()
        return account

    for account in run_ranks(on_each_rank, 2):
        assert all(reasons_of(account))
        assert len(account.counts) == 2
