"""Workers of a loader that draw alike, and epochs of one order, are noted."""

import multiprocessing
import random
from linecache import getline

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    default_collate,
    get_worker_info,
)

from samestep.base.folders import shown
from samestep.verify.observers.check import Checks
from samestep.verify.observers.loaders import LoaderGenerators, SamplerEpochs
from support.process_pool import fork_server

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


def by_transform(data, _):
    return data.steps[0]()


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


def notes_on(data, **options):
    checks = Checks([LoaderGenerators])
    with checks.attached():
        list(DataLoader(data, batch_size=4, **{"num_workers": 2, **options}))
    return list(checks.notes())


def codes_of(data, **options):
    return {note.code for note in notes_on(data, **options)}


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (lambda: Data(by_attribute, rng=np.random.default_rng(0)), {}),
        (lambda: Data(by_attribute, rng=np.random.RandomState(0)), {}),
        (lambda: Data(by_attribute, rng=random.Random(0)), {}),
        (lambda: Data(by_transform, steps=[Transform()]), {}),
        (lambda: Subset(Data(by_attribute, rng=random.Random(0)), range(20)), {}),
        (lambda: FromGlobal(None), {}),
        (lambda: Data(of_process), {"worker_init_fn": seeded_equally}),
    ],
    ids=["default_rng", "RandomState", "Random", "transform", "Subset", "global", "seeded equally"],
)
def test_equal_random_numbers_are_noted(data, options):
    assert codes_of(data(), **options) == {"loader-workers-draw-same"}


def test_workers_are_compared_where_python_does_not_fork(monkeypatch):
    """Only this finds that workers have no hook of the script's process, as by default since Python 3.14."""
    monkeypatch.setattr(multiprocessing.context._default_context, "_actual_context", fork_server())
    assert codes_of(Data(of_process), worker_init_fn=seeded_equally) == {"loader-workers-draw-same"}


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


def test_the_note_names_the_line_that_draws_a_sample():
    (note,) = notes_on(Data(by_attribute, rng=random.Random(0)))
    assert note.place == (shown(__file__), Data.__getitem__.__code__.co_firstlineno)


DATA = TensorDataset(torch.randn(12, 3))


class ByEpoch(Sampler):
    """Shuffles by the number of the epoch."""

    def __init__(self):
        self.epoch = 0

    def __len__(self):
        return len(DATA)

    def __iter__(self):
        return iter(torch.randperm(len(DATA), generator=torch.Generator().manual_seed(self.epoch)).tolist())

    def set_epoch(self, epoch):
        self.epoch = epoch


class InOrder(ByEpoch):
    """Does not shuffle."""

    def __iter__(self):
        return iter(range(len(DATA)))


class Drawing(ByEpoch):
    """Shuffles by the global generator, which goes on by itself."""

    def __iter__(self):
        return iter(torch.randperm(len(DATA)).tolist())


def noted(loader, *, epochs=2, trains=True, set_epoch=False):
    """Return the codes of the notes on a training with a loader, and the lines that they name."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checks = Checks([SamplerEpochs])
    with checks.attached():
        for epoch in range(epochs):
            if set_epoch:
                loader.sampler.set_epoch(epoch)
            for (x,) in loader:
                model(x).sum().backward()
                if trains:
                    optimizer.step()
    return [(note.code, getline(*note.place).strip()) for note in checks.notes()]


SAME_ORDER = ("same-order-in-epochs", "for (x,) in loader:")


def of_batches(sampler):
    return DataLoader(DATA, batch_sampler=BatchSampler(sampler, 4, drop_last=False))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_is_never_set_is_noted(workers):
    loader = DataLoader(DATA, batch_size=4, sampler=ByEpoch(), num_workers=workers)
    assert noted(loader) == [SAME_ORDER]


def test_the_sampler_of_a_batch_sampler_counts():
    assert noted(of_batches(ByEpoch())) == [SAME_ORDER]


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_indices_in_an_array_are_compared(kind):
    class Batches(ByEpoch):
        def __iter__(self):
            return iter(kind([*super().__iter__()]).reshape(-1, 4))

    assert noted(DataLoader(DATA, batch_sampler=Batches())) == [SAME_ORDER]


@pytest.mark.parametrize(
    ("sampler", "how"),
    [
        (ByEpoch, {"set_epoch": True}),
        (ByEpoch, {"epochs": 1}),
        (ByEpoch, {"trains": False}),  # an evaluation may have one order
        (InOrder, {}),
        (Drawing, {}),
        (lambda: RandomSampler(DATA), {}),
    ],
)
def test_other_samplers_and_uses_are_not_noted(sampler, how):
    assert noted(DataLoader(DATA, batch_size=4, sampler=sampler()), **how) == []


X = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))


class Pairs(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return {"x": X[index], "y": [float(X[index].sum())]}


def train(collate, *, batch_size=4, dataset=None, workers=0):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(dataset or Pairs(), batch_size, collate_fn=collate, num_workers=workers)
    for batch in loader:
        optimizer.zero_grad()
        model(batch["x"]).square().mean().backward()
        optimizer.step()


def first(samples):
    return default_collate(samples[:1])


def last(samples):
    return {"y": torch.tensor(samples[-1]["y"]), "x": samples[-1]["x"]}


@pytest.mark.parametrize("collate", [first, last])
def test_one_sample_of_each_batch_is_noted(noted, named_line, collate):
    assert noted(lambda: train(collate)) == ["rows-not-used"]
    assert f"def {collate.__name__}(samples)" in named_line(lambda: train(collate))


def flattened(samples):
    """Return all samples in one row, as a packed sequence does."""
    return {"x": torch.stack([sample["x"] for sample in samples])[None]}


def selected(samples):
    """Return the sample with the largest sum."""
    return default_collate([max(samples, key=lambda sample: sample["y"])])


def averaged(samples):
    batch = default_collate(samples)
    return {"x": batch["x"].mean(0, keepdim=True), "y": batch["y"]}


def without_labels(samples):
    return {"x": samples[0]["x"][None]}


class Named(Pairs):
    """Samples with texts, which cannot be compared."""

    def __getitem__(self, index):
        return {**super().__getitem__(index), "name": str(index)}


class NoArrays(Pairs):
    """Samples with a nested tensor, which is no array of numbers."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return {**sample, "parts": torch.nested.nested_tensor([sample["x"]])}


class Equal(Pairs):
    def __getitem__(self, index):
        return super().__getitem__(0)


RIGHT = {
    "all": lambda: train(None),
    "packed": lambda: train(flattened),
    "selected": lambda: train(selected),
    "averaged": lambda: train(averaged),
    "other values": lambda: train(without_labels),
    "a batch of one": lambda: train(first, batch_size=1),
    "few batches": lambda: train(first, batch_size=8),
    "texts": lambda: train(first, dataset=Named()),
    "no arrays": lambda: train(lambda samples: {"x": samples[0]["x"][None]}, dataset=NoArrays()),
    "equal samples": lambda: train(None, dataset=Equal()),
    "worker processes": lambda: train(None, workers=1),
    "no batches": lambda: train(None, batch_size=None),
}


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("name", RIGHT)
def test_other_batches_have_no_note(noted, name):
    assert noted(RIGHT[name]) == []
