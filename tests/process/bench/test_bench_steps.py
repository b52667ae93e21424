"""Steps are measured on real processes, and each synchronizer takes the steps of the reference."""

import pytest
import torch

from samestep.bench.figures import SYNCS
from samestep.bench.step_times import ALONE, WAYS, Problem, Trainee, measure, ways_here

PROBLEM = Problem(batch_per_worker=2, shape=(1, 8, 8))


def measured(world):
    names = ways_here(world)
    begun = []
    rows = measure(world, PROBLEM, names, seconds=0.01, done=lambda *one: begun.append(one))
    return names, rows, begun


@pytest.fixture(scope="module")
def ranks(processes):
    return processes.run(measured, 2)


@pytest.mark.long
def test_all_synchronizers_are_measured_relative_to_none(ranks):
    (names, rows, _), (_, others, _) = ranks

    assert list(WAYS) == [ALONE, *SYNCS]
    assert set(WAYS) == set(names)
    assert [row.sync for row in rows] == names
    assert all(row.step_s > 0 and row.efficiency > 0 and row.workers == 2 for row in rows)
    assert rows[0].efficiency == 1.0
    assert rows == others
    exposed = {row.sync: row.exposed_sync_s for row in rows}
    assert exposed[ALONE] == 0.0
    assert all(exposed[name] > 0 for name in ("reference", "bucketed", "flat", "exact"))


def test_the_number_of_blocks_is_known_after_the_first_ones(ranks):
    names, _, begun = ranks[0]

    assert [name for name, _ in begun[: len(names)]] == names
    assert {total for _, total in begun[: len(names)]} == {None}
    assert {total for _, total in begun[len(names) :]} == {len(begun)}


def stepped(world, name):
    trainee = Trainee(PROBLEM, world)
    with WAYS[name](trainee, world) as step:
        step()
        step()
    return [parameter.detach().clone() for parameter in trainee.model.parameters()]


@pytest.mark.parametrize("name", set(WAYS) - {ALONE, "reference"})
def test_each_synchronizer_takes_the_steps_of_the_reference(processes, name):
    expected = processes.run(stepped, 2, "reference")[0]

    for found in processes.run(stepped, 2, name):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_without_synchronization_the_weights_of_ranks_differ(processes):
    one, other = processes.run(stepped, 2, ALONE)

    assert not all(map(torch.equal, one, other))
