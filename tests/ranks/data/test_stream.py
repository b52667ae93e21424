"""`samestep.shard` divides a stream of any length into the global batches of one process."""

import random
from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import samestep
from samestep.base.errors import DataError, PeerLost, UsageError
from samestep.parallel.sharding import Plan, Position
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks
from samestep.training.data.stream import sample_digest
from support.iterable_data_sets import Broken, Counting, Epochs, Forever, PerRank, Shuffled, Sized

SIZES = (1, 2, 3)


def steps_of(loader):
    return [batch.tolist() for batch in loader]


def joined(per_rank):
    """Return the global batches, ranks concatenated in order."""
    return [[value for part in parts for value in part] for parts in zip(*per_rank, strict=True)]


@given(
    count=st.integers(1, 23),
    batch_size=st.integers(3, 9),
    samples=st.integers(0, 23),
    drop_last=st.booleans(),
    size=st.sampled_from(SIZES),
)
def test_a_stream_has_the_steps_of_a_data_set_of_its_length(count, batch_size, samples, drop_last, size):
    samples = min(samples, count)
    start = Position(0, 2, samples)

    def on_each_rank(world):
        loader = samestep.shard(Sized(count), batch_size=batch_size, drop_last=drop_last, world=world)
        loader.load_state_dict(asdict(start))
        left = loader.remaining
        return [
            (batch.tolist(), loader.loss_weight, loader.global_count, loader.position) for batch in loader
        ], left

    if drop_last and count < batch_size:
        return  # `Plan` refuses it; how long a stream is may not be known
    for rank, (told, left) in enumerate(run_ranks(on_each_rank, size)):
        plan = Plan(
            count=count,
            batch_size=batch_size,
            place=samestep.Place(rank=rank, size=size),
            shuffle=False,
            drop_last=drop_last,
        )
        assert told == [
            (list(range(part.start, part.stop)), part.weight, part.global_count, part.after)
            for part in plan.parts(start)
        ]
        assert left == len(told)


def test_the_length_is_that_of_the_data_set_if_it_has_one():
    assert len(samestep.shard(Sized(10), batch_size=4, world=SoloWorld())) == 3
    unknown = samestep.shard(Counting(10), batch_size=4, world=SoloWorld())
    for ask in (len, lambda loader: loader.remaining):
        with pytest.raises(TypeError, match=r"Counting has no len\(\)"):
            ask(unknown)
    assert steps_of(unknown) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_an_endless_stream_is_read_on_demand():
    taken = zip(range(3), samestep.shard(Forever(), batch_size=2, world=SoloWorld()), strict=False)
    assert [batch.tolist() for _, batch in taken] == [[0, 1], [2, 3], [4, 5]]


def test_a_dataloader_of_a_stream_keeps_its_settings():
    serial = DataLoader(Counting(7), batch_size=3, drop_last=True, collate_fn=list)
    assert list(samestep.shard(serial, world=SoloWorld())) == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("size", SIZES)
def test_a_run_saved_within_a_pass_resumes_on_any_number_of_ranks(size):
    live = samestep.shard(Counting(11), batch_size=4, world=SoloWorld())
    for _ in live:
        saved = live.state_dict()
        break
    assert saved == {"seed": 0, "epoch": 0, "samples": 4}

    def resume(world):
        loader = samestep.shard(Counting(11), batch_size=4, world=world)
        loader.load_state_dict(saved)
        loader.set_epoch(0)
        return [*steps_of(loader), *steps_of(loader)], loader.state_dict()

    resumed = run_ranks(resume, size)
    assert joined([batches for batches, _ in resumed]) == [
        [4, 5, 6, 7],
        [8, 9, 10],
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10],
    ]
    assert {state["epoch"] for _, state in resumed} == {2}


def test_set_epoch_of_the_data_set_is_called_with_each_epoch():
    loader = samestep.shard(Epochs(2), batch_size=2, world=SoloWorld())
    assert [steps_of(loader) for _ in range(2)] == [[[0, 1]], [[100, 101]]]
    loader.set_epoch(7)
    assert steps_of(loader) == [[700, 701]]


def test_random_numbers_of_a_stream_depend_on_seed_and_epoch_and_leave_other_generators_unchanged():
    def epochs(seed):
        loader = samestep.shard(Shuffled(30), batch_size=30, seed=seed, world=SoloWorld())
        return [steps_of(loader)[0] for _ in range(2)]

    torch.manual_seed(5)
    for _ in range(2):
        list(DataLoader(Counting(1)))  # each pass of a DataLoader draws a seed
    expected = torch.get_rng_state(), random.getstate()
    torch.manual_seed(5)
    first = epochs(0)
    assert torch.equal(torch.get_rng_state(), expected[0])
    assert random.getstate() == expected[1]
    torch.manual_seed(6)
    assert epochs(0) == first
    assert first[0] != first[1]
    assert epochs(1) != first


def test_a_rank_without_samples_gets_an_empty_batch():
    def last(world):
        return [len(batch) for batch in samestep.shard(Counting(4), batch_size=3, world=world)]

    assert run_ranks(last, 3) == [[1, 1], [1, 0], [1, 0]]


def test_an_empty_batch_that_cannot_be_created_is_refused_in_the_first_step_of_an_endless_stream():
    def dropping(world):
        return next(
            iter(samestep.shard(Forever(), batch_size=3, drop_last=True, collate_fn=frozenset, world=world))
        )

    def each(world):
        with pytest.raises(UsageError, match=r"length can leave worker 1 without samples.*drop_last=True"):
            next(iter(samestep.shard(Forever(), batch_size=3, collate_fn=frozenset, world=world)))

    run_ranks(each, 2)
    assert run_ranks(dropping, 3) == [{0}, {1}, {2}]


@pytest.mark.parametrize(("count", "options"), [(10, {}), (8, {}), (9, {"drop_last": True})])
def test_no_empty_batch_is_needed_if_every_rank_has_samples(count, options):
    def lengths(world):
        loader = samestep.shard(Sized(count), batch_size=4, collate_fn=frozenset, world=world, **options)
        return [len(batch) for batch in loader]

    assert run_ranks(lengths, 2) == [[2, 2, 1][: -(-count // 4) - ("drop_last" in options)]] * 2


def test_an_error_of_samestep_on_one_rank_is_raised_on_all():
    """Rank 1 gets no samples of a known length, or cannot read its data set."""

    def none_for_rank_1(world):
        with pytest.raises(UsageError, match="a short last batch leaves worker 1 without samples"):
            next(iter(samestep.shard(Sized(5), batch_size=4, collate_fn=frozenset, world=world)))

    def unreadable_on_rank_1(world):
        data = Broken(0, DataError("shard-7.tar is damaged"), broken=world.place.rank == 1)
        with pytest.raises(DataError, match=r"^shard-7\.tar is damaged$"):
            next(iter(samestep.shard(data, batch_size=4, world=world)))

    run_ranks(none_for_rank_1, 2)
    run_ranks(unreadable_on_rank_1, 3)


def test_an_error_of_the_users_code_is_raised_on_its_rank_and_peer_lost_on_the_others():
    def first(world):
        data = Broken(0, KeyError("mask"), broken=world.place.rank == 1)
        kind, says = (
            (KeyError, "mask") if world.place.rank == 1 else (PeerLost, "worker 1 .* KeyError: 'mask'")
        )
        with pytest.raises(kind, match=says):
            next(iter(samestep.shard(data, batch_size=4, world=world)))

    run_ranks(first, 3)


def test_ranks_that_read_different_streams_are_refused_in_the_first_step():
    def first(world):
        data = PerRank(world.place.rank, world.place.size)
        with pytest.raises(UsageError, match="worker 1 reads another first sample than worker 0"):
            next(iter(samestep.shard(data, batch_size=4, world=world)))

    run_ranks(first, 2)


def test_a_stream_without_samples_on_one_rank_is_refused():
    def first(world):
        data = Counting(5 if world.place.rank == 0 else 0)
        with pytest.raises(UsageError, match="another first sample"):
            next(iter(samestep.shard(data, batch_size=4, world=world)))

    run_ranks(first, 2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "needs batch_size="),
        ({"batch_size": 2}, "global batch of 2 .*3"),
        ({"batch_size": 4, "shuffle": True}, "Counting is a stream"),
    ],
)
def test_unsupported_options_are_refused(options, says):
    world = run_ranks(lambda world: world, 3)[0]
    with pytest.raises(UsageError, match=says):
        samestep.shard(Counting(8), world=world, **options)


def test_a_state_beyond_the_end_is_refused():
    state = {"seed": 0, "epoch": 0, "samples": 11}
    with pytest.raises(UsageError, match="after 11 samples"):
        samestep.shard(Sized(10), batch_size=5, world=SoloWorld()).load_state_dict(state)
    loader = samestep.shard(Counting(10), batch_size=5, world=SoloWorld())
    loader.load_state_dict(state)
    with pytest.raises(UsageError, match="this stream ends after 10"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("sample", "other"),
    [
        (torch.tensor([1.0]), torch.tensor([2.0])),
        (torch.tensor([0], dtype=torch.int32), torch.tensor([0], dtype=torch.int64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        ({"text": "a"}, {"text": "b"}),
        ([1, (2, b"x")], [1, (2, b"y")]),
        (["a", "bc"], ["ab", "c"]),
        (1, 1.0),
    ],
)
def test_different_samples_have_different_digests(sample, other):
    assert sample_digest(sample) != sample_digest(other)


def test_equal_samples_have_equal_digests():
    def sample():
        imaginary = torch.tensor([1 + 2j]).conj()
        strange = [torch.arange(0), torch.arange(2.0).to(torch.bfloat16), imaginary, imaginary.imag]
        return {
            "x": torch.arange(6).reshape(2, 3).T,
            "strange": strange,
            "y": [torch.tensor(0.5).numpy(), object(), None],
        }

    assert sample_digest(sample()) == sample_digest(sample())
