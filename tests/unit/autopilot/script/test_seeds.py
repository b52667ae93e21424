"""Unseeded generators are equal in all runs, and differ between the loader processes of one run."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from samestep.autopilot.script import seeds
from samestep.autopilot.script.seeds import fixed_seeds


@pytest.fixture(autouse=True)
def generators():
    before = random.getstate()
    yield
    random.setstate(before)


def numbers_of(monkeypatch, *, child):
    """Return numbers of unseeded generators in a script, and then in a process that it has forked."""
    with fixed_seeds(7), monkeypatch.context() as patch:
        first = random.Random().random()
        patch.setattr(seeds, "_drawing", lambda: (child,))
        return first, random.Random().random(), random.Random().random()


def test_two_runs_draw_equal_numbers(monkeypatch):
    assert numbers_of(monkeypatch, child=1) == numbers_of(monkeypatch, child=1)


def test_forked_processes_draw_other_numbers_than_each_other(monkeypatch):
    one, other = (numbers_of(monkeypatch, child=child) for child in (1, 2))

    assert one[0] == other[0]
    assert len({*one, *other}) == 5


@pytest.mark.parametrize("is_first", [True, False])
def test_a_thread_does_not_change_the_numbers_of_the_main_one(is_first):
    with fixed_seeds(7), ThreadPoolExecutor(1) as pool:
        before = pool.submit(lambda: random.Random().random()).result() if is_first else None
        main = random.Random().random()
        other = before or pool.submit(lambda: random.Random().random()).result()

    with fixed_seeds(7):
        assert random.Random().random() == main
    assert other != main
