"""The samples of each step are counted by calls and by loaders, and summed up for --count."""

from threading import Thread

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

from samestep.observe import sample_count as module
from samestep.observe import step_reader
from samestep.observe.sample_count import COUNTING, LoadedSamples, LoaderHook, StepCounts
from samestep.observe.step_clock import ScriptClock
from support.clocked_scripts import ticking_phases


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


@pytest.fixture
def count(monkeypatch):
    """Return a function that runs a script, in which each change of phase takes a second, and counts."""

    def run(script):
        monkeypatch.setattr(step_reader, "Phases", ticking_phases())
        counts = StepCounts()
        clock = ScriptClock(counts, COUNTING, stop=lambda: None)
        with clock.attached():
            clock.begin()
            script()
        clock.end("end")
        return counts, clock.samples

    return run


def train(step, *, accumulate=1):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = step(model)
    data = DataLoader(TensorDataset(torch.randn(20, 3)), batch_size=8)
    for k, (batch,) in enumerate(data):
        model(batch).sum().backward()
        if (k + 1) % accumulate == 0:
            optimizer()
    model.eval()
    with torch.no_grad():
        model(torch.randn(7, 3))


def with_sgd(model):
    return torch.optim.SGD(model.parameters()).step


def by_hand(model):
    def step():
        for parameter in model.parameters():
            parameter.data -= parameter.grad

    return step


@pytest.mark.parametrize(
    ("step", "accumulate", "steps"), [(with_sgd, 1, 3), (with_sgd, 3, 1), (by_hand, 1, 3)]
)
def test_steps_and_samples_are_counted(count, step, accumulate, steps):
    counts, samples = count(lambda: train(step, accumulate=accumulate))
    assert (counts.steps, samples.all_trained, samples.all_otherwise) == (steps, 20, 7)


def test_backwards_of_a_closure_are_part_of_its_step(count):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(5, 2)).square().mean()
        loss.backward()
        return loss

    counts, _ = count(lambda: [optimizer.step(closure) for _ in range(2)])
    assert counts.steps == 2


def test_steps_without_a_call_of_a_model_are_counted(count):
    def script():
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(4):
            weight.square().sum().backward()
            optimizer.step()

    counts, _ = count(script)
    assert (counts.steps, counts.timed["steps"], counts.timed["backward"]) == (4, 3, 3)


def test_times_are_measured_from_the_end_of_the_first_step(count):
    counts, samples = count(lambda: train(with_sgd))
    # Two steps of seven seconds: four phases and three times between them.
    each = dict.fromkeys(("data", "forward", "backward", "optimizer"), 2)
    assert counts.timed == {**each, "exposed_sync": 0, "seconds": 14, "steps": 2}
    words = counts.summary(samples, is_sharded=False)
    assert words.startswith("3 steps, 20 samples in training, 7 otherwise; ")
    assert "forward 14%" in words
    assert "communication" not in words


@pytest.mark.parametrize(("every", "timed"), [(4, 6), (1, 7)])
def test_steps_with_an_evaluation_are_timed_only_if_most_steps_have_one(count, every, timed):
    def script():
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(1, 9):
            model.train()(torch.ones(4, 3)).sum().backward()
            optimizer.step()
            if number % every == 0:
                with torch.no_grad():
                    model.eval()(torch.ones(4, 3))

    counts, _ = count(script)
    assert counts.timed["steps"] == timed


def test_calls_inside_a_module_are_not_counted_again(count):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    counts, samples = count(lambda: model(torch.ones(4, 3)))
    words = counts.summary(samples, is_sharded=True)
    assert words == "0 steps, 4 samples in training, 0 otherwise on worker 0"
