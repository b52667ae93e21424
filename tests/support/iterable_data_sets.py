"""Iterable data sets, for tests of streams."""

import random
from itertools import count

import torch
from torch.utils.data import IterableDataset, get_worker_info


class Counting(IterableDataset):
    """The numbers from 0 on, without a length."""

    def __init__(self, stop):
        self.stop = stop

    def __iter__(self):
        return iter(range(self.stop))


class Sized(Counting):
    """The same with a length."""

    def __len__(self):
        return self.stop


class Split(Counting):
    """Splits itself among loader processes, as torch's documentation teaches."""

    def __iter__(self):
        info = get_worker_info()
        return iter(range(self.stop) if info is None else range(info.id, self.stop, info.num_workers))


class Shuffled(Counting):
    """Draws its order, and adds what it drew, from the generators of the process."""

    def __iter__(self):
        numbers = torch.randperm(self.stop).tolist()
        random.shuffle(numbers)
        return iter(numbers)


class Epochs(Counting):
    """Adds 100 times the epoch that was set."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return (100 * self.epoch + number for number in range(self.stop))


class Forever(IterableDataset):
    """Does not end."""

    def __iter__(self):
        return count()


class PerRank(IterableDataset):
    """Gives each rank a different part."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def __iter__(self):
        return iter(range(self.rank, 20, self.size))


class Unseeded(Counting):
    """Draws from its own generator, which has no seed."""

    def __iter__(self):
        return iter(random.Random().sample(range(2**40), self.stop))


class Broken(Counting):
    """Fails after its last number, on one rank or on all."""

    def __init__(self, stop, error, *, broken=True):
        super().__init__(stop)
        self.error, self.broken = error, broken

    def __iter__(self):
        yield from range(self.stop)
        if self.broken:
            raise self.error


class Sliced(Counting):
    """The numbers from `start` on: what torch's documentation lets a `worker_init_fn` change."""

    start = 0

    def __iter__(self):
        return iter(range(self.start, self.stop))
