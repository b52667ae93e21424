"""A batch has as many samples as its loader drew, with any collate function."""

from threading import Thread

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

from samestep.observe.clock import sample_count as module
from samestep.observe.clock.sample_count import LoadedSamples, LoaderHook


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def columns(samples):
    """Collate with time first, as torch's language models do."""
    return torch.stack([one for (one,) in samples], dim=1)


def graphs(samples):
    """Collate as graph libraries do: concatenate all nodes."""
    return torch.cat([one for (one,) in samples])


def loader(**how):
    return DataLoader(TensorDataset(torch.zeros(10, 35)), **({"batch_size": 4} | how))


@pytest.fixture
def read():
    """Return a function that reads a loader with a step per batch, and returns the samples of each step."""

    def read(loader, *others):
        loaded = LoadedSamples()
        with LoaderHook(loaded.add).attached():
            steps = []
            for _ in zip(loader, *others, strict=True):
                loaded.trained()
                steps.append(loaded.next_step())
        return steps, loaded.samples_per_epoch(loader)

    return read


@pytest.mark.parametrize("how", [{}, {"collate_fn": columns}, {"collate_fn": graphs}, {"shuffle": True}])
def test_a_batch_has_as_many_samples_as_were_drawn(read, how):
    assert read(loader(**how)) == ([4, 4, 2], 10)


def test_dropped_samples_are_not_part_of_an_epoch(read):
    assert read(loader(drop_last=True)) == ([4, 4], 8)


def test_an_epoch_of_a_batch_sampler_with_a_shard_has_the_samples_of_the_shard(read):
    class Own(BatchSampler):
        def __iter__(self):
            return iter(list(super().__iter__())[::2])

        def __len__(self):
            return 2

    own = Own(RandomSampler(range(10)), 4, drop_last=False)
    assert read(loader(batch_size=1, batch_sampler=own)) == ([4, 2], 6)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_prefetching_workers_are_counted(read, workers):
    assert read(loader(num_workers=workers)) == ([4, 4, 2], 10)


def test_the_last_partial_batch_of_an_iterable_data_set_is_counted(read):
    assert read(DataLoader(Numbers(), batch_size=4)) == ([4, 4, 2], None)


def test_samples_are_unknown_if_the_data_set_returns_whole_batches(read):
    steps, samples = read(loader(batch_size=None))
    assert (set(steps), samples) == ({None}, None)


def test_a_step_with_two_data_sets_counts_both_and_has_no_epoch(read):
    assert read(loader(), loader()) == ([8, 8, 4], None)


def test_batches_of_a_nested_loader_are_counted_once(read):
    class Batches(IterableDataset):
        def __iter__(self):
            return iter(loader())

    steps, _ = read(DataLoader(Batches(), batch_size=2))
    assert steps == [2, 1]


def test_batches_of_another_thread_are_not_counted():
    loaded = LoadedSamples()
    with LoaderHook(loaded.add).attached():
        thread = Thread(target=list, args=(loader(),))
        thread.start()
        thread.join()
    assert loaded.next_step() == 0


def test_batches_of_a_thread_that_begins_to_train_are_counted():
    loaded, steps = LoadedSamples(), []
    batches = LoaderHook(loaded.add)
    with batches.attached():
        mine = iter(loader())
        next(mine)

        def train():
            others = iter(loader())
            next(others)
            batches.follow()
            loaded.clear()
            for _ in others:
                loaded.trained()
                steps.append(loaded.next_step())

        thread = Thread(target=train)
        thread.start()
        thread.join()
    assert steps == [4, 2]


@pytest.mark.parametrize("uses", [False, True])
def test_batches_beyond_the_maximum_are_dropped(monkeypatch, uses):
    """If each step is the replay of a graph, no step ends for the clock."""
    monkeypatch.setattr(module, "MAX_BATCHES", 2)
    loaded, batches = LoadedSamples(), loader()
    with LoaderHook(loaded.add).attached():
        list(batches)
        if uses:
            loaded.trained()
        list(batches)
        assert len(loaded._batches) <= 3
        loaded.drop_evaluation()
        assert loaded.next_step() == (None if uses else 0)


def test_batches_of_an_evaluation_are_not_counted():
    loaded = LoadedSamples()
    with LoaderHook(loaded.add).attached():
        train = loader()
        for _ in train:
            loaded.trained()
            loaded.next_step()
        list(loader(batch_size=2))
        loaded.drop_evaluation()
        assert loaded.next_step() == 0
    assert loaded.samples_per_epoch(train) == 10
