"""Weights do not depend on the number of workers, to the last bit."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from samestep.base.errors import UsageError
from samestep.parallel.exact.logical_shards import Exact
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks


class Branches(nn.Module):
    """A model with batch norm, dropout, an unused layer, and a layer that only some samples reach."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.register_buffer("mask", torch.tensor([float("-inf"), 0.0]))
        self.norm, self.drop = nn.BatchNorm1d(5, dtype=dtype), nn.Dropout(0.4)
        self.first, self.last = nn.Linear(5, 7, dtype=dtype), nn.Linear(7, 3, dtype=dtype)
        self.unused, self.rare = nn.Linear(2, 2, dtype=dtype), nn.Linear(7, 3, dtype=dtype)

    def forward(self, samples):
        hidden = self.drop(self.first(self.norm(samples))).relu()
        scores = self.last(hidden)
        return scores + self.rare(hidden) if samples[0, 0] > 0.5 else scores


def model(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    made = Branches(dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return made


def trained(world, counts, shards, micro_batches=1, dtype=torch.float32):
    """Train on a batch of each of `counts` samples; return all tensors and which parameters had gradients."""
    made = model(dtype)
    exact = Exact(made, shards=shards, seed=3, world=world)
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.05)
    used = []
    for step, count in enumerate(counts):
        generator = torch.Generator().manual_seed(step)
        samples = torch.randn(count, 5, generator=generator).to(dtype)
        labels = torch.randint(0, 3, (count,), generator=generator)
        for shard in exact.shards(step):
            own = shard.of(count)
            for part in range(micro_batches):
                inputs, targets = samples[own][part::micro_batches], labels[own][part::micro_batches]
                if len(inputs) > 1:
                    (F.cross_entropy(made(inputs), targets, reduction="sum") / count).backward()
        used.append([parameter.grad is not None for parameter in made.parameters()])
        nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    exact.check()
    return {name: value.clone() for name, value in made.state_dict().items()}, used


def assert_same_bits(one, other):
    assert one[1] == other[1]
    assert one[0].keys() == other[0].keys()
    for name, value in one[0].items():
        assert torch.equal(value, other[0][name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(("shards", "micro_batches"), [(8, 1), (8, 2), (6, 1), (1, 1), (5, 3)])
def test_any_number_of_workers_ends_with_the_bits_of_one(shards, micro_batches, dtype):
    counts = (48, 48, 29, 48)
    alone = trained(SoloWorld(), counts, shards, micro_batches, dtype)

    for size in {2, 3, 4, shards} & set(range(2, shards + 1)):
        for rank in run_ranks(trained, size, counts, shards, micro_batches, dtype):
            assert_same_bits(rank, alone)


@settings(max_examples=15)
@given(st.integers(1, 9), st.lists(st.integers(1, 40), min_size=1, max_size=4), st.data())
def test_short_batches_and_empty_shards_have_the_same_bits(shards, counts, data):
    size = data.draw(st.integers(1, shards))
    alone = trained(SoloWorld(), counts, shards)

    for rank in run_ranks(trained, size, counts, shards):
        assert_same_bits(rank, alone)


def test_one_shard_is_plain_training():
    """Its gradients and buffers are those of the plain loop."""
    made, plain = model(torch.float64), model(torch.float64)
    for one in (made, plain):
        one.drop.p = 0.0
    inputs = torch.randn(16, 5, dtype=torch.float64)
    for _ in Exact(made, shards=1, world=SoloWorld()).shards(0):
        made(inputs).square().mean().backward()
    plain(inputs).square().mean().backward()

    for one, other in zip(made.parameters(), plain.parameters(), strict=True):
        assert one.grad is other.grad or torch.equal(one.grad, other.grad)
    for (name, one), other in zip(made.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(one, other), name


def test_batch_norm_averages_the_statistics_of_shards_and_counts_steps():
    made = nn.BatchNorm1d(2, momentum=1.0)
    samples = torch.randn(12, 2)
    exact = Exact(made, shards=3, world=SoloWorld())
    for step in range(2):
        for shard in exact.shards(step):
            made(samples[shard.of(12)]).sum().backward()

    means = torch.stack([samples[slice(4 * one, 4 * one + 4)].mean(0) for one in range(3)])
    torch.testing.assert_close(made.running_mean, means.mean(0))
    assert made.num_batches_tracked == 2


@pytest.mark.parametrize(("threads", "expected"), [({}, 1), ({"threads": 3}, 3), ({"threads": None}, 2)])
def test_the_threads_are_not_a_workers_share_of_the_cores(threads, expected):
    """Only this finds one worker with both cores, which has other bits than two with one each."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        Exact(model(), shards=2, world=SoloWorld(), **threads)
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)


def test_random_numbers_outside_do_not_depend_on_shards():
    made = model()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    for _ in Exact(made, shards=2, world=SoloWorld()).shards(0):
        made(torch.randn(4, 5)).sum().backward()
    assert torch.equal(torch.rand(3), expected)


def test_each_step_and_shard_has_its_own_random_numbers():
    made = nn.Dropout(0.5)
    exact = Exact(made, shards=2, world=SoloWorld())
    kept = [[made(torch.ones(64)).tolist() for _ in exact.shards(step)] for step in (0, 1, 0)]
    assert kept[0] == kept[2]
    assert kept[0] != kept[1]
    assert kept[0][0] != kept[0][1]


class Draws(nn.Module):
    """A layer that is skipped at random, by numpy's and Python's generators."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, samples):
        kept = random.random() < 0.6 and np.random.random() < 0.8
        return self.layer(samples) if kept else samples * self.layer.weight.sum()


def left_out(world):
    torch.manual_seed(0)
    made = Draws()
    for _ in Exact(made, shards=8, world=world).shards(0):
        made(torch.ones(2, 5)).sum().backward()
    return made.layer.weight.grad, made.layer.bias.grad


def test_numpy_and_python_generators_are_seeded_for_each_shard():
    drawn = random.random(), np.random.random()
    random.seed(1), np.random.seed(1)
    alone = left_out(SoloWorld())
    assert 0 < alone[1][0] < 16  # left out in some shards, and not in others
    for size in (2, 3):
        for rank in run_ranks(left_out, size):
            assert all(map(torch.equal, rank, alone))
    after = random.random(), np.random.random()
    random.seed(1), np.random.seed(1)
    assert after == (random.random(), np.random.random()) != drawn


def scaled(world):
    """Train in a user-defined loop with clipping and a loss scale that overflows at first."""
    made = model()
    exact = Exact(made, shards=8, seed=3, world=world)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.5, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)
    scales = []
    for step in range(4):
        samples = torch.randn(20, 5, generator=torch.Generator().manual_seed(step))
        for shard in exact.shards(step):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = made(samples[shard.of(20)]).square().sum() / 20
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(made.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        optimizer.zero_grad()
    return {name: value.clone() for name, value in made.state_dict().items()}, scales


def test_a_loss_scaler_and_clipping_have_equal_inputs_on_all_workers():
    alone = scaled(SoloWorld())
    assert set(alone[1]) == {2.0**11, 2.0**12}  # it overflowed, and came back
    assert all(value.isfinite().all() for name, value in alone[0].items() if name != "mask")
    assert not torch.equal(alone[0]["last.weight"], model().last.weight)
    for size in (3, 8):
        for rank in run_ranks(scaled, size):
            assert_same_bits(rank, alone)


def test_gradients_that_share_memory_are_summed_separately():
    made = nn.Module()
    made.one, made.other = (nn.Parameter(torch.zeros(2, 3)) for _ in range(2))
    for shard in Exact(made, shards=3, world=SoloWorld()).shards(0):
        ((made.one.view(6) + made.other.view(6)) * (shard.index + 1)).sum().backward()

    assert made.one.grad.tolist() == made.other.grad.tolist() == [[6.0] * 3] * 2
    assert made.one.grad.untyped_storage().data_ptr() != made.other.grad.untyped_storage().data_ptr()


def test_gradients_of_a_step_do_not_change_in_the_next_step():
    made = nn.Linear(3, 2, bias=False)
    exact = Exact(made, shards=2, world=SoloWorld())
    kept = []
    for step in range(2):
        for shard in exact.shards(step):
            made(torch.full((1, 3), shard.index + step + 1.0)).sum().backward()
        kept.append(made.weight.grad)
        made.zero_grad()

    assert [grad[0, 0].item() for grad in kept] == [3.0, 5.0]


def twice(world, dtype):
    """Run two loops over shards without clearing gradients; return the gradients after each loop."""
    made = nn.Module()
    made.one = nn.Parameter(torch.full((4,), 1 / 3, dtype=dtype))
    made.rare = nn.Parameter(torch.full((2,), 1 / 7, dtype=dtype))
    made.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    made.frozen.grad = torch.ones(2)
    exact = Exact(made, shards=6, world=world)
    kept = []
    for step in range(2):
        for shard in exact.shards(step):
            (made.one.square().sum() / (shard.index + step + 1)).backward()
            if shard.index == 4 and step == 0:
                made.rare.sum().backward()
        kept.append(made.one.grad)
    exact.check()
    return [*kept, made.rare.grad, made.frozen.grad]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_that_were_not_cleared_add_up_with_the_same_bits(dtype):
    alone = twice(SoloWorld(), dtype)
    expected = [sum(1 / (index + step + 1) for index in range(6)) * 2 / 3 for step in range(2)]

    assert alone[0][0].item() == pytest.approx(expected[0], rel=1e-2)
    assert alone[1][0].item() == pytest.approx(sum(expected), rel=1e-2)
    assert alone[2].tolist() == alone[3].tolist() == [1.0, 1.0]
    for size in (2, 3):
        for rank in run_ranks(twice, size, dtype):
            assert all(map(torch.equal, rank, alone))


def test_gradients_that_were_cleared_to_zeros_are_cleared():
    made = nn.Linear(3, 2, bias=False)
    exact = Exact(made, shards=2, world=SoloWorld())
    for step in range(2):
        made.zero_grad(set_to_none=False)
        for _ in exact.shards(step):
            made(torch.ones(1, 3)).sum().backward()

    assert made.weight.grad.tolist() == [[2.0] * 3] * 2


def test_an_optimizer_that_steps_within_a_shard_is_refused():
    made = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    shards = Exact(made, shards=2, world=SoloWorld()).shards(0)
    next(shards)
    made(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    with pytest.raises(UsageError, match=r"^weight .* after the loop over shards"):
        next(shards)


def test_shards_of_two_models_at_once_are_refused():
    one, other = (Exact(model(), shards=2, world=SoloWorld()) for _ in range(2))

    with pytest.raises(UsageError):
        for _ in zip(one.shards(0), other.shards(0), strict=True):
            pass
    assert len(list(one.shards(0))) == 2  # the generators are free again


def more_ranks_than_shards(world):
    with pytest.raises(UsageError, match=r"^2 logical shards .* 3 workers"):
        Exact(model(), shards=2, world=world)


def test_more_ranks_than_shards_are_refused():
    run_ranks(more_ranks_than_shards, 3)


def test_sync_batch_norm_is_refused():
    with pytest.raises(UsageError, match="SyncBatchNorm"):
        Exact(nn.SyncBatchNorm(3), shards=2, world=SoloWorld())


def counted(world):
    made = nn.Linear(1, 1)
    made.register_buffer("seen", torch.tensor(1))
    made.register_buffer("reached", torch.zeros(3, dtype=torch.bool))
    for shard in Exact(made, shards=3, world=world).shards(0):
        made.seen += shard.index
        made.reached[shard.index] = True
    return made.seen.item(), made.reached.tolist()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_increasing_integer_buffers_become_the_maximum(size):
    assert run_ranks(counted, size) == [(3, [True] * 3)] * size


def agreed(world):
    made = nn.Linear(1, 1)
    made.register_buffer("pointer", torch.tensor([2]))
    made.register_buffer("mask", torch.ones(3, dtype=torch.bool))
    made.register_buffer("small", torch.tensor([-(2**63), 5]))
    exact = Exact(made, shards=3, world=world)
    seen = []
    for step in range(3):
        for shard in exact.shards(step):
            made.pointer.copy_((made.pointer + 1) % 4)
            made.small.copy_(torch.tensor([2**63 - 1, -5 - step]))
            if shard.index == 2:  # only one shard
                made.mask[step] = False
        seen.append((made.pointer.item(), made.mask.tolist(), made.small.tolist()))
    return seen


@pytest.mark.parametrize("size", [1, 2, 3])
def test_integer_buffers_on_which_all_shards_agree_may_decrease(size):
    falls = [[False, True, True], [False, False, True], [False] * 3]
    expected = [([3, 0, 1][step], falls[step], [2**63 - 1, -5 - step]) for step in range(3)]
    assert run_ranks(agreed, size) == [expected] * size


def differing(world):
    made = nn.Linear(1, 1)
    made.register_buffer("queue", torch.tensor([4, 4]))

    def step():
        for shard in Exact(made, shards=3, world=world).shards(0):
            made.queue[0] += 1 - shard.index

    with pytest.raises(UsageError, match=r"buffer queue "):
        step()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_integer_buffers_that_decrease_to_different_values_are_refused_by_name(size):
    run_ranks(differing, size)
