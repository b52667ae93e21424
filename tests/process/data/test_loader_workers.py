"""Loader processes give the batches that a rank would load itself."""

import re
from dataclasses import replace

import pytest
import torch
from torch.utils.data import TensorDataset

import samestep
from samestep.base.errors import DataError, UsageError
from samestep.base.place import Place
from samestep.parallel.sharding import Position
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks
from samestep.training.data.augmentation import parse_augment
from samestep.training.data.loader import ImageLoader, LoaderOptions
from support.image_sets import as_read, random_images
from support.snapshots import same

SERVED = {"num_workers": 1, "multiprocessing_context": "forkserver"}


def test_worker_processes_give_equal_batches_and_states():
    data = TensorDataset(torch.arange(20))
    options = {"batch_size": 6, "shuffle": True, "world": SoloWorld()}
    plain = samestep.shard(data, **options)
    served = samestep.shard(data, **options, **SERVED, persistent_workers=True)
    for _ in range(3):
        got = [batch.tolist() for (batch,) in served]
        assert got == [batch.tolist() for (batch,) in plain]
        assert served.state_dict() == plain.state_dict()


@pytest.mark.parametrize("stop", [0, 2, 3, 4])
def test_a_run_resumed_at_any_batch_has_the_random_numbers_of_one_that_was_not_stopped(stop):
    """Torch draws once for all passes of processes that persist; only this catches a second draw."""
    loader = samestep.shard(
        TensorDataset(torch.arange(6)), batch_size=2, world=SoloWorld(), **SERVED, persistent_workers=True
    )
    torch.manual_seed(1)
    states = [(loader.state_dict(), torch.get_rng_state())]
    states += [(loader.state_dict(), torch.get_rng_state()) for _ in range(2) for _ in loader]
    after = torch.get_rng_state()
    state, random = states[stop]
    resumed = samestep.shard(
        TensorDataset(torch.arange(6)), batch_size=2, world=SoloWorld(), **SERVED, persistent_workers=True
    )
    resumed.load_state_dict(state)
    torch.set_rng_state(random)
    for _ in range(state["epoch"], 2):
        list(resumed)
    assert torch.equal(torch.get_rng_state(), after)


def test_a_worker_process_creates_the_empty_batch():
    data, last = TensorDataset(torch.arange(4)), run_ranks(lambda world: world, 3)[2]
    served = samestep.shard(data, batch_size=3, world=last, collate_fn=list, **SERVED)
    assert [len(batch) for batch in served] == [1, 0]


def test_an_empty_batch_that_cannot_be_created_is_an_error_without_a_traceback():
    data, last = TensorDataset(torch.arange(4)), run_ranks(lambda world: world, 3)[2]
    served = samestep.shard(data, batch_size=3, world=last, collate_fn=frozenset, **SERVED)
    with pytest.raises(UsageError, match=r"^a short last batch leaves this worker without samples") as caught:
        next(iter(served))
    assert "Traceback" not in str(caught.value)


def read_unreadable(world):
    """Return the error of a loader process that cannot read its image."""
    images = as_read(random_images(8, channels=3))
    other = replace(images, shape=(1, 8, 8))
    drawn = ImageLoader(other, LoaderOptions(batch_size=4), place=Place(), device=world.device, workers=1)
    try:
        next(drawn.epoch(Position()))
    except DataError as error:
        return str(error)


def test_an_image_that_cannot_be_read_is_named_without_a_traceback(processes):
    (message,) = processes.run(read_unreadable, 1)

    assert re.match(r"random train: image \d is torch.uint8", message)
    assert "Traceback" not in message


def read_by_processes(world, workers):
    """Return the batches that `workers` loader processes read: the rest of an epoch, and one more."""
    images = as_read(random_images(23, channels=3))
    how = LoaderOptions(batch_size=6, accumulate=2, augment=parse_augment("crop:1,flip"))
    drawn = ImageLoader(images, how, place=world.place, device=world.device, workers=workers)
    starts = (Position(seed=3, epoch=0, samples=12), Position(seed=3, epoch=1))
    return [(batch.images, batch.labels, batch.ids) for start in starts for batch in drawn.epoch(start)]


def test_loader_processes_read_the_images_that_the_main_process_reads(processes):
    served = processes.run(read_by_processes, 2, 2)
    assert same(served, processes.run(read_by_processes, 2, 0))
    assert len(served[0]) == (2 + 4) * 2
    ids = torch.cat([ids for rank in served for _, _, ids in rank[4:]])
    assert sorted(ids.tolist()) == list(range(23))
