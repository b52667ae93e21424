"""The optimizer that ends a cycle is inferred from the steps, and inferred again after a change."""

import pytest
import torch

from samestep.observe.step_clock import MAX_CYCLE, OptimizerCycle


def ends(order):
    """Return a mark for each step of an order of optimizers: ``|`` if it ends a cycle."""
    cycle = OptimizerCycle()
    made = {name: torch.optim.SGD([torch.zeros(1)]) for name in sorted(set(order))}
    return "".join("|" if cycle.ends_cycle(made[name]) else "." for name in order)


@pytest.mark.parametrize(
    ("order", "marks"),
    [
        ("AAAA", "||||"),
        ("DGDGDG", "|..|.|"),
        ("DDDGDDDGDDDG", "|||....|...|"),
        ("DGGDGGDGG", "|.|...|.."),
        ("ABCABCABC", "|....|..|"),
        ("AAABBB", "|||.||"),
    ],
)
def test_a_cycle_is_inferred_after_it_has_occurred_twice(order, marks):
    assert ends(order) == marks


@pytest.mark.parametrize(
    ("order", "marks"),
    [
        ("ABABABAAAAA", "|..|.|..|||"),  # B stops
        ("DGDGDDDDD", "|..|..|||"),
        ("ABABABBBB", "|..|.||||"),  # A stops
        ("ABCABCABABABAB", "|....|.....|.|"),  # C stops
        ("AAABBBAAABBB", "|||.||.||.||"),  # they replace each other
        ("DDDGDDDGDDDDDDDDD", "|||....|......|||"),
        ("ABABAAAAABABAB", "|..|..|||..|.|"),  # B returns
        ("ABABCABCABC", "|..|...|..|"),  # C joins
    ],
)
def test_the_cycle_is_inferred_again_when_an_optimizer_stops_or_returns(order, marks):
    assert ends(order) == marks


def test_a_cycle_ends_after_a_maximum_of_steps_and_with_each_freed_optimizer():
    assert "|" in ends("A" * 5 * MAX_CYCLE + "B" + "A" * (MAX_CYCLE + 1))[5 * MAX_CYCLE :]
    alone = OptimizerCycle()
    assert all(alone.ends_cycle(torch.optim.SGD([torch.zeros(1)])) for _ in range(5))  # each is gone


def restarts(order):
    """Return the steps after which all earlier cycles are known to be parts."""
    cycle = OptimizerCycle()
    made = {name: torch.optim.SGD([torch.zeros(1)]) for name in sorted(set(order))}
    found = []
    for number, name in enumerate(order):
        cycle.ends_cycle(made[name])
        if cycle.restarts:
            found.append(number)
    return found


def test_earlier_cycles_that_were_parts_of_a_longer_one_are_reported():
    assert restarts("AAAA") == restarts("AAABBB") == []
    assert restarts("DGDGDG") == [2]
    assert restarts("DDDGDDDG") == [4]
    assert restarts("ABABABAAAAA") == [2]
    assert restarts("A" * (MAX_CYCLE + 1) + "BABAB") == []  # a separate training ran before
