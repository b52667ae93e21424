"""`samestep.shard` and `UnpaddedSampler` give each sample once, in an equal number of steps on all ranks."""

import math
import pickle
from collections import namedtuple

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import samestep
from samestep.base.errors import UsageError
from samestep.parallel.sharding import Plan, Position
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks
from samestep.training.data.sharded_loader import ShareBatchSampler

SIZES = (1, 2, 3)


def numbers(count):
    return TensorDataset(torch.arange(count), torch.arange(count) * 10)


def steps_of(loader):
    return [batch[0].tolist() for batch in loader]


def joined(per_rank):
    """Return the global batches, ranks concatenated in order."""
    return [sum(parts, []) for parts in zip(*per_rank, strict=True)]  # noqa: RUF017 - a few short lists


@pytest.mark.parametrize("size", SIZES)
def test_steps_are_the_same_on_any_number_of_ranks(size):
    def on_each_rank(world):
        loader = samestep.shard(numbers(22), batch_size=6, shuffle=True, seed=3, world=world)
        return [steps_of(loader) for _ in range(2)]

    serial = samestep.shard(numbers(22), batch_size=6, shuffle=True, seed=3, world=SoloWorld())
    per_rank = run_ranks(on_each_rank, size)
    for epoch in range(2):
        expected = steps_of(serial)
        assert joined([rank[epoch] for rank in per_rank]) == expected
        assert sorted(sum(expected, [])) == list(range(22))  # noqa: RUF017


def test_the_current_world_is_the_default():
    parts = run_ranks(lambda world: steps_of(samestep.shard(numbers(8), batch_size=4)), 2)
    assert parts == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


@pytest.mark.parametrize("size", SIZES)
def test_weighted_losses_average_to_the_global_mean(size):
    def on_each_rank(world):
        loader = samestep.shard(numbers(22), batch_size=5, shuffle=True, world=world)
        means = []
        for values, _ in loader:
            loss = values.double().mean().item() * loader.loss_weight if len(values) else 0.0
            means.append((world.sum(loss) / size, loader.global_count))
        return means

    expected = [
        (values.double().mean().item(), len(values))
        for values, _ in samestep.shard(numbers(22), batch_size=5, shuffle=True, world=SoloWorld())
    ]
    for means in run_ranks(on_each_rank, size):
        assert [count for _, count in means] == [count for _, count in expected]
        assert [mean for mean, _ in means] == pytest.approx([mean for mean, _ in expected], abs=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_a_sum_over_samples_is_exact_if_a_rank_has_no_samples(size):
    """The idiom that the documentation of `shard` shows, and the one it warns of."""

    def on_each_rank(world):
        total = poisoned = 0.0
        for values, targets in samestep.shard(numbers(7), batch_size=3, world=world):
            total += mse_loss(values.double(), targets.double(), reduction="sum").item()
            poisoned += mse_loss(values.double(), targets.double()).item() * len(values)
        return world.sum(total), poisoned

    results = run_ranks(on_each_rank, size)
    assert {total for total, _ in results} == {sum((9 * i) ** 2 for i in range(7))}
    assert [math.isnan(poisoned) for _, poisoned in results] == [rank > 0 for rank in range(size)]


Pair = namedtuple("Pair", ["number", "name"])


class Forms(Dataset):
    """Samples of every structure that the default collation supports."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"x": torch.ones(2, 3), "pair": Pair(index, str(index)), "list": [index, 0.5]}


def test_a_rank_without_samples_gets_an_empty_batch_of_the_same_structure():
    def last(world):
        return list(samestep.shard(Forms(), batch_size=3, world=world))[-1]

    batch = run_ranks(last, 3)[2]
    assert batch["x"].shape == (0, 2, 3)
    assert batch["pair"].number.shape == (0,)
    assert len(batch["pair"].name) == 0
    assert [part.shape for part in batch["list"]] == [(0,), (0,)]


class Together(Forms):
    """Fetches the samples of a batch in one call, which needs at least one of them."""

    kind = "train"

    def __getstate__(self):
        return vars(self)

    def __getitems__(self, indices):
        first, *_ = indices
        return [self[index] for index in (first, *indices[1:])]


def test_a_data_set_that_fetches_batches_is_not_called_for_an_empty_share():
    def last(world):
        loader = samestep.shard(Together(), batch_size=3, world=world)
        loader = pickle.loads(pickle.dumps(loader))  # as for loader processes that are spawned
        assert (loader.dataset.kind, len(loader.dataset)) == ("train", len(Together()))
        loader.dataset.kind = "test"
        assert vars(loader.dataset._dataset) == {"kind": "test"}
        return [batch["x"].shape[0] for batch in loader]

    assert [parts[-1] for parts in run_ranks(last, 3)] == [1, 0, 0]


def test_a_detection_loop_counts_each_image_once_if_a_rank_has_none():
    def count(world):
        data = numbers(4)
        loader = samestep.shard(data, batch_size=3, collate_fn=lambda b: tuple(zip(*b)), world=world)  # noqa: B905
        return [len(images) for images, _ in loader]

    assert run_ranks(count, 3) == [[1, 1], [1, 0], [1, 0]]


class Graphs:
    """A batch of a class without a known structure."""

    def __init__(self, samples):
        self.samples = samples


def test_an_empty_batch_that_cannot_be_created_is_refused_before_the_first_step():
    def first(world):
        loader = samestep.shard(numbers(4), batch_size=3, collate_fn=Graphs, world=world)
        if world.place.rank > 0:
            with pytest.raises(UsageError, match=r"returns a .*Graphs.* drop_last=True"):
                next(iter(loader))
        else:
            assert len(next(iter(loader)).samples) == 1

    run_ranks(first, 3)


@pytest.mark.parametrize("options", [{"batch_size": 5}, {"batch_size": 3, "drop_last": True}])
def test_no_empty_batch_is_needed_if_every_rank_has_samples(options):
    def lengths(world):
        loader = samestep.shard(numbers(7), collate_fn=Graphs, world=world, **options)
        return [len(batch.samples) for batch in loader]

    assert all(all(rank) for rank in run_ranks(lengths, 2))


def test_a_run_saved_on_two_ranks_resumes_on_three():
    def begin(world):
        loader = samestep.shard(numbers(22), batch_size=6, shuffle=True, seed=1, world=world)
        for step, _ in enumerate(loader, start=1):
            if step == 2:
                return loader.state_dict()
        raise AssertionError("the epoch has 4 steps")

    def resume(world):
        loader = samestep.shard(numbers(22), batch_size=6, shuffle=True, world=world)
        loader.load_state_dict(saved[0])
        loader.set_epoch(0)  # as a loop over epochs would; it must not begin the epoch again
        return steps_of(loader), steps_of(loader)

    saved = run_ranks(begin, 2)
    assert saved == [{"seed": 1, "epoch": 0, "samples": 12}] * 2
    serial = samestep.shard(numbers(22), batch_size=6, shuffle=True, seed=1, world=SoloWorld())
    first, second = steps_of(serial), steps_of(serial)
    resumed = run_ranks(resume, 3)
    assert joined([rank[0] for rank in resumed]) == first[2:]
    assert joined([rank[1] for rank in resumed]) == second


def test_between_passes_the_state_is_the_start_of_the_next_pass():
    loader = samestep.shard(numbers(22), batch_size=6, world=SoloWorld())

    def epoch_and_samples():
        return loader.state_dict()["epoch"], loader.state_dict()["samples"]

    loader.set_epoch(3)
    assert epoch_and_samples() == (3, 0)
    for _ in loader:
        assert epoch_and_samples() == (3, 6)
        break
    assert epoch_and_samples() == (4, 0)
    steps_of(loader)
    assert epoch_and_samples() == (5, 0)
    loader.load_state_dict({"seed": 0, "epoch": 7, "samples": 12})
    assert epoch_and_samples() == (7, 12)


def test_a_resumed_run_has_the_batches_of_the_original_run_after_a_break():
    def make():
        return samestep.shard(numbers(22), batch_size=6, shuffle=True, world=SoloWorld())

    live, resumed = make(), make()
    for _ in live:
        break
    resumed.load_state_dict(live.state_dict())
    assert steps_of(resumed) == steps_of(live)


def test_closing_an_earlier_iterator_does_not_change_the_state():
    loader = samestep.shard(numbers(22), batch_size=6, world=SoloWorld())
    first, second = iter(loader), iter(loader)
    next(first)
    next(second)
    first.close()
    assert loader.state_dict() == {"seed": 0, "epoch": 1, "samples": 6}


def test_len_is_that_of_an_epoch_and_remaining_counts_down():
    loader = samestep.shard(numbers(22), batch_size=6, world=SoloWorld())
    assert (len(loader), loader.remaining) == (4, 4)
    loader.load_state_dict({"seed": 0, "epoch": 0, "samples": 12})
    assert (len(loader), loader.remaining) == (4, 2)
    left = [loader.remaining for _ in loader]
    assert left == [1, 4]  # once the last batch is used, the state is that of the next epoch
    assert (len(loader), loader.remaining) == (4, 4)


def test_each_pass_is_the_next_epoch_even_after_a_break():
    loader = samestep.shard(numbers(30), batch_size=30, shuffle=True, world=SoloWorld())
    passes = [next(iter(loader))[0].tolist() for _ in range(2)]
    assert passes[0] != passes[1]
    loader.set_epoch(0)
    assert next(iter(loader))[0].tolist() == passes[0]


def test_a_pass_begins_with_its_first_batch():
    """A DataLoader with workers makes two iterators and draws from the second."""
    sampler = ShareBatchSampler(Plan(count=4, batch_size=2), seed=0)
    _, second = iter(sampler), iter(sampler)
    next(second)
    assert sampler.upcoming == Position(0, 1)


def test_a_dataloader_keeps_its_settings():
    def doubled(samples):
        return torch.tensor([value for value, _ in samples]) * 2, None

    serial = DataLoader(numbers(10), batch_size=4, shuffle=True, drop_last=True, collate_fn=doubled)
    loader = samestep.shard(serial, world=SoloWorld())
    batches = steps_of(loader)
    assert [len(batch) for batch in batches] == [4, 4]
    assert all(value % 2 == 0 for batch in batches for value in batch)
    assert batches != [[0, 2, 4, 6], [8, 10, 12, 14]]
    assert steps_of(samestep.shard(DataLoader(numbers(4), batch_size=2), world=SoloWorld())) == [
        [0, 1],
        [2, 3],
    ]


def test_num_workers_0_overrides_the_worker_options_of_a_dataloader():
    serial = DataLoader(
        numbers(4), batch_size=2, num_workers=2, persistent_workers=True, prefetch_factor=4, timeout=9
    )
    assert samestep.shard(serial, world=SoloWorld()).prefetch_factor == 4
    alone = samestep.shard(serial, num_workers=0, world=SoloWorld())
    assert steps_of(alone) == [[0, 1], [2, 3]]
    assert (alone.persistent_workers, alone.prefetch_factor, alone.timeout) == (False, None, 0)
    with pytest.raises(ValueError, match="persistent_workers"):
        samestep.shard(serial, num_workers=0, persistent_workers=True, world=SoloWorld())


def test_in_order_false_of_a_dataloader_becomes_true():
    serial = DataLoader(numbers(4), batch_size=2, num_workers=2, in_order=False)
    assert samestep.shard(serial, world=SoloWorld()).in_order


class Endless(Dataset):
    def __getitem__(self, index):
        return index


class Backwards(SequentialSampler):
    def __iter__(self):
        return reversed(range(8))


FEWER = RandomSampler(range(8), num_samples=4)
OWN_ORDER = WeightedRandomSampler([1.0] * 8, 8)
OWN_BATCHES = BatchSampler(SequentialSampler(range(8)), 2, drop_last=False)


@pytest.mark.parametrize(
    ("data", "options", "says"),
    [
        (numbers(8), {}, "needs batch_size="),
        (numbers(8), {"batch_size": 2}, r"global batch of 2 .* 3 workers"),
        (numbers(8), {"batch_size": 4, "in_order": False}, "in_order=False"),
        (Endless(), {"batch_size": 4}, "Endless has no length"),
        (DataLoader(numbers(8), batch_size=4, sampler=OWN_ORDER), {}, "WeightedRandomSampler"),
        (DataLoader(numbers(8), batch_size=4, sampler=FEWER), {}, "RandomSampler"),
        (DataLoader(numbers(8), batch_size=4, sampler=Backwards(range(8))), {}, "Backwards"),
        (DataLoader(numbers(8), batch_sampler=OWN_BATCHES), {}, "batch_sampler"),
    ],
)
def test_unsupported_data_and_options_are_refused(data, options, says):
    world = run_ranks(lambda world: world, 3)[0]
    with pytest.raises(UsageError, match=says):
        samestep.shard(data, world=world, **options)


@pytest.mark.parametrize("size", [1, 2, 3, 12])
def test_a_sampler_for_evaluation_gives_each_sample_once(size):
    def on_each_rank(world):
        sampler = samestep.UnpaddedSampler(numbers(10), world=world)
        loader = DataLoader(numbers(10), batch_size=2, sampler=sampler)
        seen = sum(steps_of(loader), [])  # noqa: RUF017
        assert len(seen) == len(sampler)
        return seen

    assert sum(run_ranks(on_each_rank, size), []) == list(range(10))  # noqa: RUF017


@pytest.mark.parametrize("size", SIZES)
def test_a_sampler_for_training_gives_this_ranks_share_of_each_global_batch(size):
    def on_each_rank(world):
        sampler = samestep.UnpaddedSampler(numbers(22), batch_size=6, shuffle=True, seed=2, world=world)
        loader = DataLoader(numbers(22), batch_size=sampler.local_batch_size, sampler=sampler)
        epochs = [steps_of(loader) for _ in range(2)]
        sampler.load_state_dict(sampler.state_dict(epoch=1, steps=2))
        return [*epochs, steps_of(loader)]

    serial = samestep.shard(numbers(22), batch_size=6, shuffle=True, seed=2, world=SoloWorld())
    first, second = steps_of(serial), steps_of(serial)
    per_rank = run_ranks(on_each_rank, size)
    assert [joined([rank[k] for rank in per_rank]) for k in range(3)] == [first, second, second[2:]]


def test_the_state_after_the_last_step_is_the_next_epoch():
    sampler = samestep.UnpaddedSampler(numbers(22), batch_size=6, world=SoloWorld())
    assert sampler.state_dict(epoch=4, steps=4) == {"seed": 0, "epoch": 5, "samples": 0}


def test_the_length_of_a_sampler_is_computed_without_iterating(monkeypatch):
    sampler = samestep.UnpaddedSampler(numbers(22), batch_size=6, world=SoloWorld())
    monkeypatch.setattr(Plan, "parts", None)
    assert len(sampler) == 22


def test_a_sampler_that_would_leave_ranks_out_of_step_is_refused():
    world = run_ranks(lambda world: world, 3)[0]
    with pytest.raises(UsageError, match=r"2 of 20 samples, .* 3 workers"):
        samestep.UnpaddedSampler(numbers(20), batch_size=6, world=world)
    assert len(samestep.UnpaddedSampler(numbers(20), batch_size=6, drop_last=True, world=world)) == 6


def test_a_state_beyond_the_end_is_refused_when_it_is_loaded():
    loader = samestep.shard(numbers(10), batch_size=5, world=SoloWorld())
    with pytest.raises(UsageError, match="after 11 samples"):
        loader.load_state_dict({"seed": 0, "epoch": 0, "samples": 11})
