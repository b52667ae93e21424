"""Gathered shares equal the batch bit for bit, for all supported structures."""

from collections import namedtuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.autopilot.loading.row_gather import (
    FAILED,
    GOOD,
    batch_of_rows,
    gather_rows,
    rows_of,
    same_rows,
)
from samestep.hooks.tensor_tree import leaves, mapped
from samestep.parallel.sharding.share import share
from samestep.ranks.world.thread_world import run_ranks

Pair = namedtuple("Pair", "one other")
DTYPES = [torch.float32, torch.float64, torch.bool, torch.int64, torch.uint8, torch.bfloat16, torch.complex64]
SHAPES = st.lists(st.integers(0, 3), max_size=3)


@st.composite
def batches(draw):
    total = draw(st.integers(1, 9))
    kinds = draw(st.lists(st.tuples(st.sampled_from(DTYPES), SHAPES), min_size=1, max_size=4))
    tensors = [(torch.randn(total, *shape) * 9).to(dtype) for dtype, shape in kinds]
    form = draw(
        st.sampled_from([list, tuple, lambda made: {"x": made}, lambda made: Pair(made[0], {"y": made})])
    )
    return total, form(tensors)


@settings(deadline=None, max_examples=60)
@given(batches(), st.integers(1, 4))
def test_gathered_shares_equal_the_batch(made, size):
    total, batch = made
    if total < size:
        return
    rows = rows_of(batch, total)
    assert rows is not None

    def rank(world):
        own = share(total, world.place.rank, size)
        part = mapped(batch, lambda _, tensor: tensor[own.start : own.stop])
        assert rows_of(part, len(own)) == rows
        assert same_rows(batch, own, part)
        messages = gather_rows(world, rows, total, part, GOOD)
        assert [int(one[0]) for one in messages] == [GOOD] * size
        return batch_of_rows(messages, rows, total, part)

    for whole in run_ranks(rank, size):
        assert type(whole) is type(batch)
        for (path, one), (other, two) in zip(leaves(whole), leaves(batch), strict=True):
            assert path == other
            assert one.dtype == two.dtype
            assert torch.equal(one.flatten().view(torch.uint8), two.flatten().view(torch.uint8))


def test_a_failed_share_is_a_status_in_the_same_message():
    rows = rows_of(torch.zeros(3, 2), 3)

    def rank(world):
        part = torch.ones(share(3, world.place.rank, 2).stop, 2) if world.place.is_main else None
        messages = gather_rows(world, rows, 3, part, FAILED if part is None else GOOD)
        return [int(one[0]) for one in messages]

    assert run_ranks(rank, 2) == [[GOOD, FAILED]] * 2


@pytest.mark.parametrize(
    "batch",
    [
        [torch.zeros(4, 2), "name"],
        [torch.zeros(4, 2), torch.zeros(5)],
        torch.zeros(4, 2).to_sparse(),
        torch.zeros(4, 2, requires_grad=True),
        torch.zeros(2, 4).t(),
        {"x": torch.zeros(4), "size": 4},
        [],
        torch.tensor(4.0),
    ],
    ids=lambda batch: str(type(batch)),
)
def test_batches_that_are_not_rows_of_samples_are_unsupported(batch):
    assert rows_of(batch, 4) is None
