"""Workers of a loader that draw the same numbers are noted, from any generator that the data set reaches."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, get_worker_info

from samestep.verify.observers.check import Checks
from samestep.verify.observers.loader_generators import LoaderGenerators

GLOBAL = np.random.default_rng(3)


class Data(Dataset):
    """Samples from a function of the index."""

    def __init__(self, draw, **attributes):
        self.draw = draw
        vars(self).update(attributes)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return float(self.draw(self, index))


class FromGlobal(Data):
    """Samples from a generator of the module."""

    def __getitem__(self, index):
        return float(GLOBAL.random())


class Transform:
    """A transform with a generator of its own."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(2)

    def __call__(self):
        return torch.rand((), generator=self.generator)


class Stream(IterableDataset):
    """All workers draw one order, and each takes its part."""

    def __init__(self):
        self.rng = random.Random(0)

    def __iter__(self):
        worker = get_worker_info()
        for number in range(24):
            drawn = self.rng.random()
            if number % worker.num_workers == worker.id:
                yield drawn


def seeded_equally(_):
    np.random.seed(7)


def seeded_differently(number):
    get_worker_info().dataset.rng = np.random.default_rng(number)


def by_attribute(data, _):
    return data.rng.random()


def seeded_by_index(data, index):
    data.rng.seed(index)
    return data.rng.random()


def seeded_by_constant(data, _):
    data.rng.seed(5)
    return data.rng.random()


def fresh(_, index):
    return np.random.default_rng(index).random()


def of_process(*_):
    return np.random.random() + random.random() + torch.rand(()).item()


def drawn_once(data, _):
    if data.scale is None:
        data.scale = data.rng.random()
    return data.scale


def codes_of(data, **options):
    checks = Checks([LoaderGenerators])
    with checks.attached():
        list(DataLoader(data, batch_size=4, **{"num_workers": 2, **options}))
    return {note.code for note in checks.notes()}


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (lambda: Data(by_attribute, rng=np.random.default_rng(0)), {}),
        (lambda: Data(by_attribute, rng=np.random.RandomState(0)), {}),
        (lambda: Data(by_attribute, rng=random.Random(0)), {}),
        (lambda: Data(lambda data, _: data.steps[0](), steps=[Transform()]), {}),
        (lambda: Subset(Data(by_attribute, rng=random.Random(0)), range(20)), {}),
        (lambda: FromGlobal(None), {}),
        (lambda: Data(of_process), {"worker_init_fn": seeded_equally}),
    ],
    ids=["default_rng", "RandomState", "Random", "transform", "Subset", "global", "seeded equally"],
)
def test_equal_random_numbers_are_noted(data, options):
    assert codes_of(data(), **options) == {"loader-workers-draw-same"}


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (lambda: Data(of_process), {}),
        (lambda: Data(fresh), {}),
        (lambda: Data(seeded_by_index, rng=random.Random(0)), {}),
        (lambda: Data(seeded_by_constant, rng=random.Random(0)), {}),
        (lambda: Data(drawn_once, rng=random.Random(0), scale=None), {}),
        (lambda: Data(by_attribute, rng=np.random.default_rng(0)), {"worker_init_fn": seeded_differently}),
        (lambda: Data(by_attribute, rng=np.random.default_rng(0)), {"num_workers": 1}),
        (lambda: Data(by_attribute, rng=np.random.default_rng(0)), {"num_workers": 0}),
        (Stream, {}),
    ],
    ids=["process", "fresh", "by index", "constant", "once", "apart", "one worker", "none", "stream"],
)
def test_right_random_numbers_have_no_note(data, options):
    assert codes_of(data(), **options) == set()
