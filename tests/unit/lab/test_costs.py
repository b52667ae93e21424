"""The documented costs equal the steps and volumes counted in the schedules."""

import re
from collections import defaultdict, deque
from pathlib import Path

import pytest

from samestep_lab.collectives import ring, rooted_collectives
from samestep_lab.collectives.all_reduce import NAIVE, RING, TREE
from samestep_lab.collectives.halving_doubling import HALVING_DOUBLING, largest_power
from samestep_lab.collectives.schedule import rerooted
from support.collective_costs import COSTS


def both(algorithm):
    return lambda rank, size: algorithm.combine(rank, size) + algorithm.copy(rank, size)


def one(size):
    return 1


def of_ranks(size):
    return size


SCHEDULES = {
    ("all_reduce", "naive"): (both(NAIVE), one),
    ("all_reduce", "tree"): (both(TREE), one),
    ("all_reduce", "ring"): (both(RING), of_ranks),
    ("all_reduce", "halving_doubling"): (both(HALVING_DOUBLING), largest_power),
    ("broadcast", "naive"): (rooted_collectives.naive_broadcast_schedule, one),
    ("broadcast", "tree"): (rooted_collectives.broadcast_schedule, one),
    ("broadcast", "scatter_all_gather"): (rooted_collectives.scatter_all_gather_schedule, of_ranks),
    ("all_gather", "ring"): (ring.all_gather_schedule, of_ranks),
    ("reduce", "tree"): (rooted_collectives.reduce_schedule, one),
    ("reduce_scatter", "ring"): (ring.reduce_scatter_schedule, of_ranks),
    ("gather", "tree"): (rooted_collectives.gather_schedule, of_ranks),
    ("scatter", "tree"): (rooted_collectives.scatter_schedule, of_ranks),
}
CASES = [(*names, size) for names in SCHEDULES for size in range(1, 17)]


def finished(hops, *, alpha, beta):
    """Return the end time of the last rank, if a message takes `alpha`, and `beta` for each chunk.

    A hop begins when its rank is ready; its message arrives `alpha + beta` after both ranks are ready.
    """
    clocks, queues = [0.0] * len(hops), [deque(each) for each in hops]
    begun, sent = set(), defaultdict(deque)
    while any(queues):
        moved = False
        for rank, queue in enumerate(queues):
            if not queue:
                continue
            hop, key = queue[0], (rank, len(queue))
            if hop.to is not None and key not in begun:
                sent[rank, hop.to].append((clocks[rank], hop.send))
                begun.add(key)
                moved = True
            if hop.source is not None and not sent[hop.source, rank]:
                continue
            ends = [clocks[rank] + (alpha + beta * len(hop.send) if hop.to is not None else 0)]
            if hop.source is not None:
                start, chunks = sent[hop.source, rank].popleft()
                assert chunks == hop.receive
                ends.append(max(start, clocks[rank]) + alpha + beta * len(chunks))
            clocks[rank] = max(ends)
            queue.popleft()
            moved = True
        assert moved, "the schedule deadlocks"
    assert not any(sent.values()), "a message was not received"
    return max(clocks)


@pytest.mark.parametrize(("collective", "name", "size"), CASES)
def test_cost_models_equal_the_schedules(collective, name, size):
    schedule, chunks = SCHEDULES[collective, name]
    hops = [schedule(rank, size) for rank in range(size)]
    cost = COSTS[collective][name](size)

    assert finished(hops, alpha=1, beta=0) == cost.steps
    assert finished(hops, alpha=0, beta=1 / chunks(size)) == pytest.approx(cost.path)
    sent = max(sum(len(hop.send) for hop in each) for each in hops)
    assert sent / chunks(size) == pytest.approx(cost.sent)


def test_every_schedule_has_a_cost_model():
    assert {(collective, name) for collective in COSTS for name in COSTS[collective]} == set(SCHEDULES)


@pytest.mark.parametrize("size", range(1, 17))
def test_all_ranks_of_an_all_reduce_together_send_the_minimum(size):
    for (collective, _), (schedule, chunks) in SCHEDULES.items():
        if collective == "all_reduce":
            total = sum(len(hop.send) for rank in range(size) for hop in schedule(rank, size))
            assert total == 2 * (size - 1) * chunks(size)


def test_the_ring_sends_the_chunks_of_its_diagram():
    sent = [[hop.send[0] for hop in both(RING)(rank, 4)] for rank in range(4)]

    assert list(zip(*sent, strict=True)) == [
        (3, 0, 1, 2),
        (2, 3, 0, 1),
        (1, 2, 3, 0),
        (0, 1, 2, 3),
        (3, 0, 1, 2),
        (2, 3, 0, 1),
    ]


def test_a_schedule_for_another_root_is_renumbered():
    hops = rerooted(2, 3, rooted_collectives.scatter_schedule(0, 3), chunks_too=True)

    assert [(hop.to, hop.send) for hop in hops] == [(1, (1,)), (0, (0,))]


def test_the_page_lists_exactly_the_algorithms():
    page = (Path(__file__).parents[3] / "docs" / "lab" / "collectives" / "index.md").read_text()
    rows = re.findall(r"^\| ([a-z-]+) \| \[?`(\w+)`", page, re.MULTILINE)

    assert {(collective.replace("-", "_"), name) for collective, name in rows} == set(SCHEDULES)
