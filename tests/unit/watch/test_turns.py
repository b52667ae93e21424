"""Who ends a turn of several optimizers is learnt from their steps, and learnt again where it changes."""

import pytest
import torch

from samestep.watch.turns import MAX_CYCLE, OptimizerCycle


def ends(order):
    """Return which steps of an order of optimizers end a turn, as marks below it."""
    turns = OptimizerCycle()
    made = {name: torch.optim.SGD([torch.zeros(1)]) for name in sorted(set(order))}
    return "".join("|" if turns.ends_cycle(made[name]) else "." for name in order)


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
def test_a_turn_is_known_once_it_has_come_twice(order, marks):
    assert ends(order) == marks


@pytest.mark.parametrize(
    ("order", "marks"),
    [
        ("ABABABAAAAA", "|..|.|..|||"),  # B stops
        ("DGDGDDDDD", "|..|..|||"),
        ("ABABABBBB", "|..|.||||"),  # A stops
        ("ABCABCABABABAB", "|....|.....|.|"),  # C stops
        ("AAABBBAAABBB", "|||.||.||.||"),  # in the place of each other
        ("DDDGDDDGDDDDDDDDD", "|||....|......|||"),
        ("ABABAAAAABABAB", "|..|..|||..|.|"),  # B comes again
        ("ABABCABCABC", "|..|...|..|"),  # C joins
    ],
)
def test_an_optimizer_that_stops_or_comes_again_is_learnt_anew(order, marks):
    assert ends(order) == marks


def test_no_turn_goes_on_for_ever():
    assert "|" in ends("A" * 5 * MAX_CYCLE + "B" + "A" * (MAX_CYCLE + 1))[5 * MAX_CYCLE :]
    alone = OptimizerCycle()
    assert all(alone.ends_cycle(torch.optim.SGD([torch.zeros(1)])) for _ in range(5))  # each is gone


def restarts(order):
    """Return the steps after which all before are known to be parts of turns."""
    turns = OptimizerCycle()
    made = {name: torch.optim.SGD([torch.zeros(1)]) for name in sorted(set(order))}
    found = []
    for number, name in enumerate(order):
        turns.ends_cycle(made[name])
        if turns.restarts:
            found.append(number)
    return found


def test_what_was_taken_for_turns_before_they_were_known_is_told():
    assert restarts("AAAA") == restarts("AAABBB") == []
    assert restarts("DGDGDG") == [2]
    assert restarts("DDDGDDDG") == [4]
    assert restarts("ABABABAAAAA") == [2]
    assert restarts("A" * (MAX_CYCLE + 1) + "BABAB") == []  # a training of its own came first
