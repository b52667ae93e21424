"""Images that are read on demand make the same batches as images in memory."""

import pytest
import torch

from samestep.base.errors import DataError, UsageError
from samestep.base.machine.description import cpu_share
from samestep.base.place import Place
from samestep.parallel.sharding import Position
from samestep.training.data.augmentation import parse_augment
from samestep.training.data.loader import ImageLoader, LoaderOptions, loading_processes
from support.image_sets import as_read, random_images

CPU = torch.device("cpu")


class Recorded:
    """Reads images from memory, and records their indices."""

    def __init__(self, images):
        self.images = images
        self.read = []

    def __call__(self, index):
        self.read.append(index)
        return self.images[index]


def batches(images, position=None, *, place=None, **options):
    drawn = ImageLoader(images, LoaderOptions(**options), place=place or Place(), device=CPU, workers=0)
    return list(drawn.epoch(position))


def assert_equal_batches(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        for name in ("images", "labels", "ids"):
            assert torch.equal(getattr(one, name), getattr(other, name))
        for name in ("weight", "global_count", "after", "last_of_step"):
            assert getattr(one, name) == getattr(other, name)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_images_on_disk_and_in_memory_make_batches_with_equal_bits(size, accumulate):
    images = random_images(41, channels=3)
    options = {
        "batch_size": 12,
        "augment": parse_augment("crop:2,flip,cutout:2"),
        "accumulate": accumulate,
        "dtype": torch.float64,
    }
    for rank in range(size):
        place = Place(rank=rank, size=size)
        position = Position(3, 1, 12)
        assert_equal_batches(
            batches(as_read(images), position, place=place, **options),
            batches(images, position, place=place, **options),
        )


def test_an_interrupted_epoch_can_be_repeated_and_followed_by_another():
    images = random_images(30)
    loader = ImageLoader(as_read(images), LoaderOptions(batch_size=8), workers=0)
    first = next(iter(loader.epoch(Position(1))))  # and the pass is left
    again = list(loader.epoch(Position(1)))
    other = list(loader.epoch(Position(1, 1)))
    assert torch.equal(first.ids, again[0].ids)
    assert sorted(torch.cat([batch.ids for batch in other]).tolist()) == list(range(30))
    assert not torch.equal(again[0].ids, other[0].ids)


def test_a_resumed_epoch_reads_only_the_remaining_images():
    images = random_images(30)
    recorded = Recorded(images.images)
    left = batches(as_read(images, recorded), Position(1, 0, 16), batch_size=8)
    assert sorted(recorded.read) == sorted(torch.cat([batch.ids for batch in left]).tolist())
    assert len(recorded.read) == 14


def test_a_rank_without_samples_gets_an_empty_batch():
    last = batches(as_read(random_images(9, channels=2)), batch_size=4, place=Place(rank=2, size=3))[-1]
    assert last.images.shape == (0, 2, 6, 6)
    assert (last.labels.shape, last.labels.dtype, last.weight) == ((0,), torch.int64, 0.0)


def test_a_global_batch_smaller_than_the_world_size_is_refused():
    with pytest.raises(UsageError, match=r"global batch of 2 .* 3 workers"):
        ImageLoader(as_read(random_images(9)), LoaderOptions(batch_size=2), place=Place(size=3))


def test_an_image_of_another_shape_is_refused_with_its_index():
    images = random_images(9)
    with pytest.raises(
        DataError, match=r"random train: image 0 is torch.uint8 \(1, 3, 6\), expected uint8 \(1, 6, 6\)"
    ):
        as_read(images, lambda index: images.images[index][:, :3])[0]


def test_a_subset_has_the_first_samples():
    images = random_images(9)
    assert len(as_read(images).subset(4)) == 4
    assert torch.equal(as_read(images).subset(4)[3][0], images.images[3])
    with pytest.raises(UsageError, match=r"10 .* 9"):
        as_read(images).subset(10)


def test_loading_processes_share_the_cores_of_the_host():
    cores = cpu_share().usable
    assert loading_processes(Place(local_size=1, size=1), torch.device("cuda")) == cores
    assert loading_processes(Place(local_size=1, size=1), CPU) == max(1, cores // 2)
    assert loading_processes(Place(local_size=64, size=64), CPU) == 1
