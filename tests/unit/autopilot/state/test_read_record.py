"""A branch that all checks take alike keeps a call whole, unless what it compares is guarded."""

import itertools
import json
import pickle

import numpy as np
import pytest
import torch

from samestep.autopilot.state.sample_reads import ReadRecord, SampleReads
from support import reading_models as models


def reads_of(forward, ids):
    with SampleReads() as reads:
        reads.follow([ids])
        forward(ids)
    return reads.found


def checked(forward, *batches):
    """Return the guards of a forward after checks of some batches, each with two uneven slices."""
    record = ReadRecord()
    for ids in batches:
        part = len(ids) // 2 + 1
        record.add(reads_of(forward, ids), [reads_of(forward, ids[:part]), reads_of(forward, ids[part:])])
    return record.guards()


def drawn(seed, low=1, high=9, count=7):
    return torch.randint(low, high, (count, 4), generator=torch.Generator().manual_seed(seed))


BATCHES = [*map(drawn, range(4)), drawn(4).clamp(max=1)]


@pytest.mark.parametrize("read", models.READS)
def test_branches_on_numbers_computed_from_reads_are_seen(read):
    for computed, compared in itertools.product(models.COMPUTED, models.COMPARED):
        model = models.Reading(read, computed, compared)
        guards = checked(lambda ids, model=model: model(ids.double(), ids), *BATCHES)
        assert isinstance(guards, str), (computed, compared)


def counting(ids):
    n, place = ids[:, 0].max().item(), 0
    while place < n:
        place += 1
    for time in range(n):
        if time == n - 1:
            place += 1
    return place


def of_each_sample(ids):
    for number in ids[:, 0].tolist():
        if number > models.LIMIT:
            raise ValueError
        if 2 * number > models.LIMIT:
            number += 1
    for row in ids:
        if row.max().item() + 1 > models.LIMIT:
            row.add_(1)


def validating(ids):
    if ids.max().item() > models.LIMIT:
        raise ValueError(f"{ids.max().item()} is too large")
    if not ids.min().item() >= 0:
        raise ValueError


def cropping(ids):
    lengths = ids[:, 0].sort(descending=True).values.tolist()
    n = max(lengths)
    rows = torch.zeros(n, n).view(n, -1)[:n, : n - 1], torch.arange(n), ids.split([n - n, 4], 1)
    return rows, sorted(lengths), [*range(n)], torch.full((n,), n), torch.nn.functional.pad(ids, (0, n))


@pytest.mark.parametrize("forward", [counting, of_each_sample, validating, cropping])
def test_numbers_that_do_not_decide_a_branch_of_the_batch_keep_no_call_whole(forward):
    assert checked(forward, *BATCHES) == {}


def test_comparisons_of_a_guarded_number_keep_no_call_whole():
    ids = torch.full((8, 4), 5)
    guards = checked(lambda ids: ids.max().item() > 4, ids)
    assert [*guards.values()] == [5]
    assert isinstance(checked(lambda ids: ids.max().item() > 4, ids, ids + 1), str)  # it has no one value


def test_a_watched_integer_is_an_integer_for_others():
    with SampleReads() as reads:
        reads.follow([ids := torch.tensor([3, 5])])
        n = ids.max().item()
        as_others = [
            *(pickle.loads(pickle.dumps(n)), int(n), n.__index__(), [*range(n + 1)][-1]),
            *(json.loads(json.dumps({"n": n}))["n"], int(f"{n}"), len(str(n)) + 4, {5: 5}[n], float(n)),
        ]
        array = np.array([n, n])
        compared = n == ids, n * ids, torch.where(ids > 3, n, 0), torch.tensor([n])
    assert as_others == [5] * 9
    assert {*map(type, as_others)} == {int, float}
    assert array.dtype == np.int64
    assert all(tensor.dtype in (torch.int64, torch.bool) for tensor in compared)


def test_results_that_the_script_gets_hold_no_watched_number():
    with SampleReads(watches=False) as reads:
        reads.follow([x := torch.tensor([3.0])])
        numbers = [x.max().item(), x.long().max().item(), *x.tolist()]
    assert [*map(type, numbers)] == [float, int, float]


def test_a_gradient_of_an_input_is_none_in_a_slice():
    assert isinstance(checked(lambda ids: ids.grad is not None, drawn(0)), str)
