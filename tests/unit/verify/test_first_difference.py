"""The first module that differs is found in records of shards, joined to the tensors of one worker."""

from functools import partial

import pytest
import torch
from torch import nn

from samestep.base.folders import shown
from samestep.verify import first_difference as module
from samestep.verify.first_difference import (
    ModuleDifference,
    ModuleRecords,
    Shard,
    forward_distance,
    gradient_distance,
    ratio_of,
    with_module,
)
from samestep.verify.module_recorder import ModuleRecorder
from samestep.verify.probe import Probe
from samestep.verify.run_length import FixedLength
from samestep.verify.tensor_summary import summarize
from samestep.verify.trace import Call, Writer, read_modules
from samestep.verify.verdict import Finding

GENERATOR = torch.Generator().manual_seed(4)
X = torch.randn(12, 4, generator=GENERATOR)
Y = torch.randn(12, 2, generator=GENERATOR)
SHARDS = ([3, 7, 11, 0, 4], [1, 2, 5, 6, 8, 9, 10])
"""Samples of two ranks: of unequal number, and in another order."""


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Part(nn.Module):
    """One part of a model, with a fault on several workers."""

    def __init__(self, fault):
        super().__init__()
        self.linear, self.fault, self.rank = nn.Linear(4, 4), fault, None

    def forward(self, x):
        apart = self.fault if self.rank is not None else ""
        if apart == "rank":
            x = x * (1 + self.rank)
        if apart == "backward":
            x = Scaled.apply(x, 0.5)
        if apart == "mean":
            x = x - x.mean(0)
        y = torch.tanh(self.linear(x))
        return y + 1 if apart == "output" else y


class Model(nn.Module):
    """Parts one after the other; the one named `at` has a fault."""

    def __init__(self, fault="", at=1):
        super().__init__()
        torch.manual_seed(1)
        self.parts = nn.Sequential(*(Part(fault if k == at else "") for k in range(3)))
        self.positions, self.head = nn.Embedding(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.parts(x + self.positions(torch.arange(4)).diagonal()))


@pytest.fixture
def recorded(tmp_path):
    """Return a function that records one step of a model on some samples, as a rank with a loss."""

    def record(model, samples, loss, rank=None, *, disturb=False):
        path = tmp_path / f"{len([*tmp_path.iterdir()])}.jsonl"
        for part in model.parts:
            part.rank = rank
        probe = Probe(
            Writer(tmp_path / "trace"), 0, length=FixedLength(9), stop=lambda: None, printed=lambda: ""
        )
        recorder = ModuleRecorder(Writer(path), probe, step=0, with_parts=True, disturb=disturb)
        with recorder.attached(), probe.attached():
            loss(model(X[samples]), Y[samples]).backward()
        recorder._writer._file.close()
        probe._writer._file.close()
        return read_modules(path)

    def both(make, loss, shards=SHARDS):
        return ModuleRecords(
            reference=record(make(), [*range(12)], nn.functional.mse_loss),
            control=record(make(), [*range(12)], nn.functional.mse_loss, disturb=True),
            ranks=[record(make(), samples, loss, rank) for rank, samples in enumerate(shards)],
            epsilon=torch.finfo(torch.float32).eps,
        )

    return both


def mean(outputs, targets):
    return nn.functional.mse_loss(outputs, targets)


def weighted(outputs, targets):
    """The mean over the whole batch, of which averaging over two ranks takes back the two."""
    return nn.functional.mse_loss(outputs, targets, reduction="sum") / 24 * 2


def summed(outputs, targets):
    """A part of the mean over the whole batch, for gradients that are summed."""
    return nn.functional.mse_loss(outputs, targets, reduction="sum") / 24


LOSSES = pytest.mark.parametrize("loss", [mean, weighted, summed])


@LOSSES
@pytest.mark.parametrize("shards", [SHARDS, ([*range(6)], [*range(6, 12)])])
def test_shards_of_the_same_step_do_not_differ(recorded, loss, shards):
    assert recorded(Model, loss, shards).first_difference() is None


@LOSSES
@pytest.mark.parametrize(
    ("fault", "at", "found"),
    [
        ("output", 0, ("parts.0", "forward", "output")),
        ("rank", 1, ("parts.1", "forward", "input of part")),
        ("mean", 2, ("parts.2", "forward", "input of part")),
        ("backward", 1, ("parts.1", "backward", "gradient")),
        ("backward", 2, ("parts.2", "backward", "gradient")),
    ],
)
def test_the_module_with_the_fault_is_found(recorded, loss, fault, at, found):
    first = recorded(partial(Model, fault, at), loss).first_difference()
    assert (first.call.name, first.phase, first.part) == found
    assert first.call.kind == "Part"
    assert first.value > 100 * first.allowed


def test_another_loss_is_no_fault_of_a_module(recorded):
    first = recorded(Model, nn.functional.l1_loss).first_difference()
    assert (first.phase, first.part, first.is_outside) == ("backward", "loss", True)
    assert first.call.called[0] == shown(__file__)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_module_of_torchscript_is_recorded(recorded):
    def make():
        torch.manual_seed(1)
        return torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts, self.inner = nn.Sequential(), make()

        def forward(self, x):
            return self.inner(x)

    assert recorded(Around, mean).first_difference() is None


def shard(tensor, samples=()):
    return Shard(summarize(tensor, len(samples)), list(samples))


def test_rows_are_aligned_by_samples_or_with_the_nearest():
    rows = torch.randn(6, 3, generator=GENERATOR)
    keys = [5.0, 1.0, 3.0, 2.0, 4.0, 6.0]
    ranks = [[4, 1], [0, 2, 5, 3]]
    known = [shard(rows[at], [keys[k] for k in at]) for at in ranks]
    unknown = [shard(rows[at]) for at in ranks]
    swapped = [shard(rows[at], [keys[k] for k in reversed(at)]) for at in ranks]
    assert forward_distance(shard(rows, keys), known) == pytest.approx(0, abs=1e-6)
    assert forward_distance(shard(rows), unknown) == pytest.approx(0, abs=1e-6)
    assert forward_distance(shard(rows, keys), swapped) > 0.1


@pytest.mark.parametrize("combined", ["equal", "mean", "sum", "gathered"])
def test_tensors_without_samples_are_equal_averaged_summed_or_gathered(combined):
    one, noise = torch.randn(5, 3, generator=GENERATOR), torch.randn(5, 3, generator=GENERATOR)
    ranks = {
        "equal": [one, one],
        "mean": [one + noise, one - noise],
        "sum": [one + noise, -noise],
        "gathered": [one.flip(0), one.roll(1, 0)],
    }[combined]
    assert forward_distance(shard(one), [shard(part) for part in ranks]) == pytest.approx(0, abs=1e-6)
    ranks[1] = ranks[1] + 0.1
    assert forward_distance(shard(one), [shard(part) for part in ranks]) > 0.01


def test_columns_may_be_samples_in_another_order():
    square = torch.randn(4, 4, generator=GENERATOR)
    keys = [1.0, 2.0, 3.0, 4.0]
    other = [shard(square[at][:, [2, 0, 3, 1]], [keys[k] for k in at]) for at in ([0, 2], [1, 3])]
    assert forward_distance(shard(square, keys), other) == pytest.approx(0, abs=1e-6)


def test_tensors_of_other_shapes_are_not_compared():
    one = shard(torch.ones(4, 4))
    assert forward_distance(one, [shard(torch.ones(2, 2)), shard(torch.ones(2, 2))]) is None
    assert gradient_distance(one, [shard(torch.ones(3)), shard(torch.ones(3))], []) is None


def test_a_rank_can_have_no_rows():
    whole, empty = torch.randn(3, 4, generator=GENERATOR), torch.zeros(0, 4)
    ranks = [shard(whole), shard(empty)]
    assert forward_distance(shard(whole), ranks) == pytest.approx(0, abs=1e-6)
    assert gradient_distance(shard(2 * whole), ranks, [torch.ones(2).numpy()]) > 0.1
    assert not forward_distance(shard(empty), [shard(empty)] * 2)
    without_columns = [shard(torch.zeros(count, 0), range(count)) for count in (4, 2)]
    assert not forward_distance(without_columns[0], [without_columns[1]] * 2)


@pytest.mark.parametrize(
    ("factor", "noise", "expected"),
    [(0.5, 0.0, 0.5), (-2.0, 1e-6, -2.0), (0.0, 0.0, None), (0.5, 0.1, None), (float("nan"), 0.0, None)],
)
def test_the_ratio_of_gradients_is_known_if_one_is_a_multiple_of_the_usual_one(factor, noise, expected):
    usual, other = torch.randn(2, 8, generator=GENERATOR, dtype=torch.float64).numpy()
    found = ratio_of(factor * usual + noise * other, usual, allowed=1e-4)
    assert found == (expected if expected is None else pytest.approx(expected, rel=1e-4))
    assert ratio_of(usual, 0 * usual, allowed=1e-4) is None


def test_the_ratio_of_a_parameters_gradient_is_in_the_message():
    """Only this finds a message without it, in which a factor of samestep looks like one of rounding."""
    call = Call(
        index=0,
        parent=None,
        root=0,
        model=0,
        name="layer",
        kind="Linear",
        number=0,
        place=("train.py", 3),
        called=("train.py", 9),
    )
    difference = ModuleDifference(call, "backward", "parameter", 0.5, 1e-9, parameter="weight", ratio=0.5)
    named = module._named(Finding(cause="gradient", message="", workers=2, step=0), difference)
    assert "weight is 0.5 times" in named.message


@pytest.mark.parametrize("cause", ["sum-not-mean", "hang", "other-samples", "printed"])
def test_a_known_cause_needs_no_further_run(cause):
    def no_run(_):
        raise AssertionError("a script was run again")

    found = [Finding(cause=cause, message="", workers=2, step=0)]
    assert with_module(found, None, no_run) == found
    assert with_module([], None, no_run) == []
