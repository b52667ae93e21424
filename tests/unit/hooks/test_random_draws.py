"""The state of the random generators is exact, also if numpy's state comes from the cache."""

import random

import numpy as np
import pytest
import torch

from samestep.hooks.random_draws import RngState, seed_generators
from support.device_generator import install

CPU = torch.device("cpu")
DRAWS = {
    "torch": lambda: torch.rand(1),
    "random": random.random,
    "a normal number of Python": lambda: random.gauss(0, 1),
    "Python's normal number left over": lambda: random.gauss(0, 1),
    "Python seeded": lambda: random.seed(7),
    "a shuffle": lambda: random.shuffle([1, 2, 3]),
    "numpy": lambda: np.random.rand(),
    "numpy's integers": lambda: np.random.randint(5),
    "one normal number": lambda: np.random.randn(),
    "the normal number left over": lambda: np.random.randn(),
    "numpy seeded": lambda: np.random.seed(7),
    "a permutation": lambda: np.random.permutation(3),
}


@pytest.fixture(autouse=True)
def _as_before():
    before = RngState.now(CPU)
    yield
    before.restore()


@pytest.mark.parametrize("name", DRAWS)
def test_every_draw_is_detected_and_can_be_undone(name):
    np.random.seed(1)
    random.seed(1)
    if "left over" in name:
        np.random.randn()
        random.gauss(0, 1)
    before = RngState.now(CPU)
    assert before.same(RngState.now(CPU))
    first = DRAWS[name]()
    assert not before.same(RngState.now(CPU))
    before.restore()
    assert before.same(RngState.now(CPU))
    assert np.array_equal(DRAWS[name](), first)


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.Philox])
def test_draws_from_another_source_of_numpy_are_detected_and_can_be_undone(kind):
    np.random.set_bit_generator(kind(1))
    before = RngState.now(CPU)
    assert before.same(RngState.now(CPU))
    first = np.random.rand()
    drawn = RngState.now(CPU)
    assert not before.same(drawn)
    assert before.digest_of_changed(drawn)
    np.random.set_bit_generator(np.random.MT19937())  # as in a helper
    assert not before.same(RngState.now(CPU))
    before.restore()
    assert before.same(RngState.now(CPU))
    assert np.random.rand() == first
    seed_generators(3)
    again = np.random.rand()
    seed_generators(3)
    assert np.random.rand() == again


def test_draws_that_use_all_words_of_the_mersenne_twister_are_detected():
    np.random.seed(1)
    np.random.rand(312)
    before = RngState.now(CPU)
    np.random.rand(312)
    assert not before.same(RngState.now(CPU))
    random.seed(1)
    states = []
    for _ in range(3):
        [random.random() for _ in range(312)]
        states.append(RngState.now(CPU))
    assert not states[1].same(states[2])


def test_pythons_state_is_that_of_its_generator_and_one_object_until_a_draw():
    for _ in range(2):
        state = RngState.now(CPU).python
        assert state == random.getstate()
        assert RngState.now(CPU).python is state
        random.random()


def test_an_equal_state_of_a_device_is_not_restored(monkeypatch):
    """cuDNN draws new dropout masks of recurrent layers once the state of the device's generator is set."""

    generator = install(monkeypatch)
    before = RngState.now(torch.device("cuda"))
    before.restore()
    assert generator.sets == 0
    generator.draw()
    assert not before.same(RngState.now(torch.device("cuda")))
    before.restore()
    assert generator.sets == 1
    assert before.same(RngState.now(torch.device("cuda")))
