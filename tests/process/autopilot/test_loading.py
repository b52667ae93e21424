"""Each worker loads its share of a batch or all of it, and all workers get the batch of one worker."""

import gc
import io
import random
import weakref
from contextlib import redirect_stdout
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samestep.autopilot.loading import load_choice as loading_module
from samestep.autopilot.loading.load_choice import ScriptLoaders
from samestep.autopilot.loading.loaders import intercepted_loaders, sharded_loading
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler

from samestep.autopilot.script.call_account import Account
from samestep.base.errors import UsageError
from samestep.parallel.gradients.weight_checksum import check_equal


class Rows(Dataset):
    """Numbers in a structure, equal on every rank."""

    def __init__(self, count=20):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"x": torch.full((3,), float(index)), "y": (index, np.float32(index / 7))}


class Draws(Rows):
    def __getitem__(self, index):
        return torch.rand(2) * index, random.random(), np.random.rand()


class DrawsLate(Rows):
    def __getitem__(self, index):
        return torch.full((1,), float(index)) + (torch.rand(1) if index >= 12 else 0)


class OwnNoise(Rows):
    def __init__(self):
        super().__init__()
        self.noise = np.random.default_rng(0)

    def __getitem__(self, index):
        return index, self.noise.normal()


class Breaks(Rows):
    def __getitem__(self, index):
        if index == 17:
            raise KeyError("sample 17")
        return index, float(index)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(20))


def centred(samples):
    batch = torch.stack([sample["x"] for sample in samples])
    return batch - batch.mean()


def mixed(samples):
    return torch.tensor([sample["y"][0] for sample in samples]) * torch.rand(())


def read(world, make, load="shared", epochs=2):
    """Return a loader's batches, numbers drawn after them, and the account's lines and exceptions."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    account = Account()
    if world.place.size == 1:
        loader = make()
        batches = [batch for _ in range(epochs) for batch in loader]
    else:
        with intercepted_loaders(), sharded_loading(ScriptLoaders(world, account, load)):
            loader = make()
            batches = [batch for _ in range(epochs) for batch in loader]
    drawn = torch.rand(1).item(), random.random(), np.random.rand()
    check_equal(world, {"state": torch.get_rng_state().to(torch.float64)})
    return batches, drawn, account.lines(), account.exceptions


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def compared(processes, make, size=2, load="shared"):
    """Check that all ranks of `size` read what one worker reads; return the account's line."""
    ((serial, drawn, _, _),) = processes.run(read, 1, make, load)
    ranks = processes.run(read, size, make, load)
    for batches, then, _, exceptions in ranks:
        assert equal(batches, serial)
        assert then == drawn
        assert not exceptions
    return ranks[0][2][0].partition(": ")[2]


SHARED = "each worker loads its share of a batch"
FORKED = {"multiprocessing_context": "fork"}  # the pool's own processes are not


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(1, 30),
    batch=st.integers(1, 9),
    shuffle=st.booleans(),
    drop=st.booleans(),
    size=st.sampled_from([2, 3]),
)
def test_batches_are_those_of_one_worker(processes, count, batch, shuffle, drop, size):
    make = partial(_loader, count, batch, shuffle, drop)
    reason = compared(processes, make, size)
    full = batch >= size and count // batch > 1
    assert (reason == SHARED) == full or not full


def _loader(count, batch, shuffle, drop, generator=False):
    own = torch.Generator() if generator else None
    return DataLoader(Rows(count), batch, shuffle=shuffle, drop_last=drop, generator=own)


LOADERS = {
    "worker processes": partial(DataLoader, Rows(90), 4, shuffle=True, num_workers=2, **FORKED),
    "workers that stay": partial(
        DataLoader, Rows(90), 4, shuffle=True, num_workers=2, persistent_workers=True, **FORKED
    ),
    "a batch sampler": partial(
        DataLoader, Rows(), batch_sampler=BatchSampler(RandomSampler(Rows()), 6, True)
    ),
    "its own generator": partial(_loader, 20, 6, True, False, generator=True),
}


@pytest.mark.parametrize("name", LOADERS)
def test_loaders_of_all_kinds_are_sharded(processes, name):
    assert compared(processes, LOADERS[name]) == SHARED


def _with_own_noise():
    return DataLoader(OwnNoise(), 5)


WHOLE = {
    "reads a stream": partial(DataLoader, Stream(), 5),
    "data set makes the batches": partial(DataLoader, Rows(), None),
    "another result for a part": partial(DataLoader, Rows(), 5, collate_fn=centred),
    "collate function draws": partial(DataLoader, Rows(), 5, collate_fn=mixed),
    "one row per sample": partial(DataLoader, [(1, "name")] * 20, 5),
    "changes the data set": _with_own_noise,
    "a later batch": partial(DataLoader, DrawsLate(), 5),
}


@pytest.mark.parametrize("why", WHOLE)
def test_other_loaders_are_replicated_and_the_reason_is_reported(processes, why):
    reason = compared(processes, WHOLE[why])
    assert reason.startswith("each worker loads all of it (")
    assert why in reason


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_draw_random_numbers_are_drawn_as_on_one_worker(processes, workers):
    make = partial(DataLoader, Draws(), 5, num_workers=workers, **(FORKED if workers else {}))
    reason = compared(processes, make, load="auto")
    assert reason == "each worker loads all of it (loading a sample draws random numbers)"


@pytest.mark.parametrize("workers", [0, 2])
def test_with_load_shared_random_numbers_of_samples_do_not_depend_on_the_number_of_ranks(processes, workers):
    make = partial(DataLoader, Draws(60), 6, num_workers=workers, **(FORKED if workers else {}))
    two, three = (processes.run(read, size, make, "shared") for size in (2, 3))
    for batches, drawn, _, exceptions in two + three:
        assert equal(batches, two[0][0])
        assert drawn == two[0][1]
        assert "random numbers drawn in loading are each sample's own" in exceptions[0]
    epochs = two[0][0][:10], two[0][0][10:]
    assert not equal(epochs[0][-1], epochs[1][-1])
    assert len({float(number) for number in epochs[1][-1][1]}) == 6


def test_a_rank_loads_only_its_share(processes):
    first, second = processes.run(_loaded, 2)
    # The batch on trial is loaded whole, and then the share of it; of the others, the share alone.
    assert first == [*range(5), *range(3), *range(5, 8), *range(10, 13), *range(15, 18)]
    assert second == [*range(5), *range(3, 5), *range(8, 10), *range(13, 15), *range(18, 20)]


class Noting(Rows):
    def __getitem__(self, index):
        print(index)
        return index


def _loaded(world):
    printed = io.StringIO()
    loading = ScriptLoaders(world, Account(), "shared")
    with intercepted_loaders(), sharded_loading(loading), redirect_stdout(printed):
        list(DataLoader(Noting(20), 5))
    return [int(line) for line in printed.getvalue().split()]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_cannot_be_loaded_is_an_error_on_all_ranks(processes, workers):
    assert processes.run(_broken, 2, workers) == [["KeyError", 16], ["KeyError", 16]]


def _broken(world, workers):
    batches = []
    with intercepted_loaders(), sharded_loading(ScriptLoaders(world, Account(), "shared")):
        more = {"num_workers": 1, "prefetch_factor": 1, **FORKED} if workers else {}
        try:
            batches.extend(len(batch[0]) for batch in DataLoader(Breaks(40), 4, **more))
        except Exception as error:
            return [type(error).__name__, sum(batches)]


def test_a_late_draw_in_worker_processes_is_refused(processes):
    with pytest.raises(UsageError, match="Run with --load replicated"):
        processes.run(read, 2, partial(DataLoader, DrawsLate(40), 2, num_workers=1, **FORKED))


@pytest.mark.parametrize("stay", [False, True])
def test_worker_processes_end_with_the_last_reference_to_the_iterator(processes, stay):
    assert processes.run(_left, 2, stay) == [[True, 0, 0]] * 2


def _left(world, stay):
    """Delete an iterator early; return whether it is freed, and the exit codes of its processes."""
    gc.disable()
    try:
        with intercepted_loaders(), sharded_loading(ScriptLoaders(world, Account(), "shared")):
            iterator = iter(DataLoader(Rows(90), 4, num_workers=2, persistent_workers=stay, **FORKED))
            next(iterator)
            workers, gone = iterator._workers, weakref.ref(iterator)
            del iterator
            return [gone() is None, *(worker.exitcode for worker in workers)]
    finally:
        gc.enable()


def test_there_are_at_most_as_many_worker_processes_as_cores(processes):
    assert processes.run(_processes, 2) == [[2, 1]] * 2


def _processes(world):
    found = []
    share = loading_module.processors_of_rank
    loading_module.processors_of_rank = lambda local_size: 2 // local_size
    try:
        with intercepted_loaders(), sharded_loading(ScriptLoaders(world, Account(), "shared")):
            loader = DataLoader(Rows(60), 4, num_workers=2, **FORKED)
            for _ in range(2):
                iterator = iter(loader)
                found.append(iterator._num_workers)
                list(iterator)
    finally:
        loading_module.processors_of_rank = share
    return found
