"""The state that reading a data set changes is found, and draws from generators of the process are."""

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from samestep.autopilot.loading.fetch_requests import DRAWS, FetchRequest, extended_fetchers, state_of
from support.device_generator import install

shared_noise = np.random.default_rng(0)


class Pure:
    def __init__(self):
        self.rows, self.names = torch.arange(6), ["a", "b"]

    def __getitem__(self, index):
        return self.rows[index] * 2


class Counts(Pure):
    seen = 0

    def __getitem__(self, index):
        self.seen += 1
        return self.seen


class Caches(Pure):
    def __init__(self):
        self.kept = {}

    def __getitem__(self, index):
        return self.kept.setdefault(index, index * 2)


class Writes(Pure):
    def __getitem__(self, index):
        self.rows.add_(1)
        return self.rows[index]


class Draws(Pure):
    def __init__(self, noise):
        self.transform = [{"noise": noise}]

    def __getitem__(self, index):
        noise = self.transform[0]["noise"]
        return torch.rand(1, generator=noise) if isinstance(noise, torch.Generator) else noise.uniform(0, 1)


class NamesGlobal(Pure):
    def __getitem__(self, index):
        return [shared_noise.normal() for _ in range(2)]


def closed_over(noise):
    def transform(index):
        return index + noise.random()

    return transform


class Transforms(Pure):
    def __init__(self, transform):
        self.transform = transform

    def __getitem__(self, index):
        return self.transform(index)


CHANGED = {
    "a counter": Counts(),
    "a cache": Caches(),
    "rows written to": Writes(),
    "random.Random": Draws(random.Random(0)),
    "numpy's Generator": Draws(np.random.default_rng(0)),
    "numpy's RandomState": Draws(np.random.RandomState(0)),
    "torch's Generator": Draws(torch.Generator()),
    "a global": NamesGlobal(),
    "a closure": Transforms(closed_over(random.Random(0))),
    "a partial function": Transforms(partial(lambda noise, index: noise.random(), random.Random(0))),
    "an object around it": Transforms(Draws(random.Random(0)).__getitem__),
}


@pytest.mark.parametrize("name", CHANGED)
def test_changed_state_is_found(name):
    data = CHANGED[name]
    before = state_of(data)
    assert state_of(data) == before
    data[1]
    assert state_of(data) != before


@pytest.mark.parametrize("data", [Pure(), Transforms(lambda index: index), [1, 2, 3]], ids=str)
def test_unchanged_state_is_equal(data):
    before = state_of(data)
    data[1]
    assert state_of(data) == before


def test_a_large_data_set_is_inspected_in_part():
    data = Pure()
    data.rows = [[number] for number in range(100_000)]
    assert len(state_of(data)) < 5_000


class DrawsOnDevice:
    """A data set whose samples draw from the generator of a GPU."""

    def __getitem__(self, index):
        return torch.tensor([index, torch.get_device_module("cuda").draw()])


@pytest.mark.parametrize("what", ["check", "share", "whole"])
def test_a_draw_from_the_generator_of_a_device_is_found_and_undone(monkeypatch, what):
    generator = install(monkeypatch)
    before = generator.get_rng_state()
    fetcher = _MapDatasetFetcher(DrawsOnDevice(), True, torch.stack, False)
    with extended_fetchers():
        found = fetcher.fetch(FetchRequest([3, 4], range(1), what, device=torch.device("cuda")))
    assert found.refused == DRAWS
    if what != "check":  # a check leaves the draws of the whole batch, which the script uses
        assert torch.equal(generator.get_rng_state(), before)


def test_a_seed_of_samples_covers_the_generator_of_a_device(monkeypatch):
    install(monkeypatch)
    fetcher = _MapDatasetFetcher(DrawsOnDevice(), True, torch.stack, False)
    with extended_fetchers():
        request = FetchRequest([3, 4], range(1, 2), "check", (5, 1), torch.device("cuda"))
        checked = fetcher.fetch(request)
        own, whole = (fetcher.fetch(replace(request, what=what)).data for what in ("share", "whole"))
    assert checked.draws
    assert not checked.refused
    assert torch.equal(own[0], whole[1])
