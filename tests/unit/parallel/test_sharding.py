"""Each sample is used exactly once an epoch, at any number of workers and after resuming."""

import hashlib
import math
import re
from itertools import chain

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from samestep.base.errors import UsageError
from samestep.base.place import Place
from samestep.parallel.sharding import Plan, Position, _sorting, epoch_order, share, weight

counts = st.integers(1, 300)
sizes = st.integers(1, 9)
seeds = st.integers(0, 2**64 - 1)


def flat(lists):
    """Return the elements of all lists, in order."""
    return list(chain.from_iterable(lists))


def at(rank, size):
    return Place(rank=rank, size=size)


def plans(count, batch_size, size, **options):
    """Return the plan of each rank; a batch below the world size is raised to it."""
    batch_size = max(batch_size, size)
    return [Plan(count=count, batch_size=batch_size, place=at(rank, size), **options) for rank in range(size)]


def ids(plan, position):
    """Return this rank's sample ids, step by step."""
    order = plan.order(position)
    return [order[part.start : part.stop].tolist() for part in plan.parts(position)]


def epoch(count, batch_size, size, position, **options):
    """Return the sample ids of each step, ranks concatenated in order."""
    ranks = [ids(plan, position) for plan in plans(count, batch_size, size, **options)]
    return [flat(parts) for parts in zip(*ranks, strict=True)]


def test_seven_samples_are_assigned_to_the_expected_ranks():
    table = {1: "0000000", 2: "0000111", 3: "0001122", 4: "0011223", 7: "0123456", 9: "0123456"}
    for size, line in table.items():
        taken = [str(rank) for rank in range(size) for _ in share(7, rank, size)]
        assert "".join(taken) == line


@given(st.integers(0, 1000), st.integers(1, 40))
def test_shares_cover_the_batch_and_differ_by_one_at_most(count, size):
    parts = [share(count, rank, size) for rank in range(size)]
    assert [i for part in parts for i in part] == list(range(count))
    lengths = [len(part) for part in parts]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=60), sizes)
def test_the_weighted_mean_of_local_means_is_the_global_mean(losses, size):
    total = 0.0
    for rank in range(size):
        part = [losses[i] for i in share(len(losses), rank, size)]
        if part:
            total += weight(len(part), len(losses), size) * math.fsum(part) / len(part)
    assert total / size == pytest.approx(math.fsum(losses) / len(losses), abs=1e-9)


@given(counts, seeds, st.integers(0, 1000))
def test_an_order_is_a_permutation_that_depends_on_its_arguments_only(count, seed, number):
    order = epoch_order(count, seed=seed, epoch=number)
    assert sorted(order.tolist()) == list(range(count))
    assert order.dtype == np.int64
    np.testing.assert_array_equal(order, epoch_order(count, seed=seed, epoch=number))


words = st.sampled_from([0, 1, 2, 3, 256, 257, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1]) | seeds


@given(st.lists(words, max_size=60))
def test_words_are_sorted_stably_even_if_only_their_low_bits_differ(drawn):
    drawn = np.array(drawn, dtype=np.uint64)
    expected = np.argsort(drawn, kind="stable")
    np.testing.assert_array_equal(_sorting(drawn), expected)


def test_many_words_with_equal_high_bits_are_sorted_stably():
    """With so many samples, the high bits of some words are equal."""
    count, seed, number = 2**20, 3, 4
    drawn = np.random.Philox(key=np.array([seed, number], dtype=np.uint64)).random_raw(count) >> np.uint64(8)
    high = np.sort(drawn >> np.uint64(21))
    assert (high[1:] == high[:-1]).any()
    np.testing.assert_array_equal(_sorting(drawn), np.argsort(drawn, kind="stable"))


def test_orders_differ_between_epochs_and_seeds():
    orders = {
        tuple(epoch_order(50, seed=seed, epoch=number).tolist()) for seed in range(5) for number in range(5)
    }
    assert len(orders) == 25


def test_the_order_is_that_of_older_versions():
    """Checkpoints depend on it: a change breaks resuming."""
    assert epoch_order(10, seed=1, epoch=2).tolist() == [4, 2, 0, 6, 1, 5, 9, 8, 7, 3]
    assert epoch_order(4, seed=1, epoch=2, shuffle=False).tolist() == [0, 1, 2, 3]
    many = hashlib.sha256(epoch_order(100_000, seed=1, epoch=2).astype("<i8").tobytes()).hexdigest()
    assert many == "372ebad23bd1399df1094e3ae7a735d80d319d1c4a4486b0d52dc4003d5601da"


@given(counts, st.integers(9, 80), sizes, st.booleans(), st.data())
def test_lengths_equal_the_number_of_steps(count, batch_size, size, drop_last, data):
    drop_last = drop_last and count >= batch_size
    position = Position(samples=data.draw(st.integers(0, count)))
    for plan in plans(count, batch_size, size, drop_last=drop_last):
        parts = list(plan.parts(Position()))
        assert len(plan) == len(parts)
        assert plan.remaining(position) == len(list(plan.parts(position)))
        assert plan.local_count == sum(map(len, parts))
        assert plan.ends_empty == (not parts[-1])


@given(counts, st.integers(1, 80), sizes, seeds)
def test_each_sample_is_used_exactly_once_an_epoch(count, batch_size, size, seed):
    steps = epoch(count, batch_size, size, Position(seed))
    assert sorted(flat(steps)) == list(range(count))


@given(counts, st.integers(9, 80), sizes, seeds, st.booleans(), st.booleans())
def test_the_shards_in_the_order_of_ranks_are_the_serial_batch(
    count, batch_size, size, seed, shuffle, drop_last
):
    options = {"shuffle": shuffle, "drop_last": drop_last and count >= batch_size}
    serial = epoch(count, batch_size, 1, Position(seed), **options)
    assert epoch(count, batch_size, size, Position(seed), **options) == serial
    assert len(serial) == len(Plan(count=count, batch_size=batch_size, **options))


@given(counts, st.integers(9, 80), sizes, sizes, st.data())
def test_resuming_after_any_step_at_another_size_uses_each_sample_once(count, batch_size, size, other, data):
    begin = Position(seed=7)
    whole = epoch(count, batch_size, size, begin)
    cut = data.draw(st.integers(1, len(whole)))
    plan = Plan(count=count, batch_size=batch_size)
    after = list(plan.parts(begin))[cut - 1].after
    if cut == len(whole):
        assert after == Position(7, 1, 0)
    else:
        assert whole[:cut] + epoch(count, batch_size, other, after) == whole


@given(counts, st.integers(9, 40), st.integers(9, 40), st.integers(0, 300))
def test_resuming_with_another_batch_size_uses_each_sample_once(count, first, second, cut):
    begin = Position(seed=3)
    steps = list(Plan(count=count, batch_size=first).parts(begin))[: cut % 8]
    used = flat(epoch(count, first, 2, begin)[: len(steps)])
    after = steps[-1].after if steps else begin
    rest = flat(epoch(count, second, 3, after)) if after.epoch == 0 else []
    assert sorted(used + rest) == list(range(count))


def test_a_short_last_batch_has_empty_shares_on_some_ranks():
    steps = [ids(plan, Position()) for plan in plans(9, 4, 3, shuffle=False)]
    assert steps == [[[0, 1], [4, 5], [8]], [[2], [6], []], [[3], [7], []]]
    plan = plans(9, 4, 3)[2]
    assert [part.weight for part in plan.parts(Position())] == [0.75, 0.75, 0.0]


def test_the_epoch_ends_before_a_dropped_last_batch():
    plan = Plan(count=10, batch_size=4, drop_last=True)
    steps = list(plan.parts(Position(seed=5)))
    assert [(step.start, step.stop) for step in steps] == [(0, 4), (4, 8)]
    assert steps[-1].after == Position(5, 1, 0)
    assert len(plan) == 2


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"count": 10, "batch_size": 3, "place": at(0, 4)}, {"3", "4", "batch"}),
        ({"count": 10, "batch_size": 0}, {"0", "batch"}),
        ({"count": 0, "batch_size": 4}, {"0", "samples"}),
        ({"count": 3, "batch_size": 4, "drop_last": True}, {"3", "4", "drop_last"}),
    ],
)
def test_an_impossible_plan_is_refused_with_its_numbers(values, names):
    with pytest.raises(UsageError) as error:
        Plan(**values)
    assert names <= set(re.findall(r"\w+", str(error.value)))


def test_a_position_beyond_the_data_set_is_refused():
    with pytest.raises(UsageError, match=r"\b11 .*\b10\b"):
        Plan(count=10, batch_size=4).parts(Position(samples=11))


@pytest.mark.parametrize("values", [{"seed": -1}, {"epoch": -1}, {"samples": -1}, {"seed": 2**64}])
def test_numbers_of_a_position_that_are_negative_or_too_large_are_refused(values):
    ((name, value),) = values.items()
    with pytest.raises(UsageError, match=rf"^{name} .*{value}\b"):
        Position(**values)
