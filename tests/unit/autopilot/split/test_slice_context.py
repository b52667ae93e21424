"""The rows of packed sequences of a slice are those of its samples, also in a part that is recomputed."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from samestep.autopilot.split.sharded_autograd import BatchSplit
from samestep.autopilot.split.slice_context import (
    PackedRows,
    SliceContext,
    current_slice,
    packed_rows,
    slice_aware_functions,
)
from samestep.base.place import Place
from samestep.hooks.thread_values import bound


def of_rank(rank, size, lengths):
    """Return rank's part of a batch whose other lengths are known without communication."""

    def all_reduce(tensor):
        tensor.copy_(lengths)

    return BatchSplit(SimpleNamespace(place=Place(rank=rank, size=size), all_reduce=all_reduce), len(lengths))


@given(
    lengths=st.lists(st.integers(1, 6), min_size=3, max_size=12),
    size=st.integers(2, 3),
    is_sorted=st.booleans(),
)
def test_rows_of_slices_are_those_that_torch_packs(lengths, size, is_sorted):
    lengths = torch.tensor(sorted(lengths, reverse=True) if is_sorted else lengths)
    numbered = torch.arange(len(lengths) * 6).view(len(lengths), 6)

    def packed(part):
        return pack_padded_sequence(numbered[part], lengths[part], batch_first=True, enforce_sorted=is_sorted)

    whole = packed(slice(None)).data
    for rank in range(size):
        split = of_rank(rank, size, lengths)
        own = slice(split.start, split.start + split.local)
        part = packed(own)
        found = packed_rows(part.batch_sizes, part.sorted_indices, split)
        assert found.total == len(whole)
        assert torch.equal(whole[found.rows], part.data)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_is_computed_again_after_the_draws_and_packings_before_it(use_reentrant):
    """Only this finds a recomputed part whose dropout is that of the first packed sequence of the call."""
    before = []

    @contextmanager
    def again(draws, packings):
        before.append((draws, packings))
        with bound(current_slice, context):
            yield

    split, rows = of_rank(0, 2, torch.tensor([2, 1])), PackedRows(torch.arange(2), 3)
    context = SliceContext(split, again, draws=lambda: 3, packings=[rows, rows])
    x = torch.ones(2, requires_grad=True)
    with slice_aware_functions():
        with bound(current_slice, context):
            y = checkpoint(torch.tanh, x, use_reentrant=use_reentrant)
        y.sum().backward()
    assert before == [(3, 2)]
