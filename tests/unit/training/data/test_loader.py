"""Batches from memory are normalized, sharded and resumable."""

import pytest
import torch

from samestep.base.errors import UsageError
from samestep.base.place import Place
from samestep.parallel.sharding import Position
from samestep.training.data.augmentation import parse_augment
from samestep.training.data.loader import ImageLoader, LoaderOptions
from samestep.training.data.sets.registry import load
from support.data import shared_data
from support.image_sets import random_images

SIZES = (1, 2, 3, 5)


def ranks(images, size, **options):
    """Return the loader of each rank."""
    return [
        ImageLoader(images, LoaderOptions(**options), place=Place(rank=rank, size=size))
        for rank in range(size)
    ]


def global_batches(images, size, position, **options):
    """Return (ids, images, labels) of each global batch, ranks concatenated in order."""
    passes = zip(*(loader.epoch(position) for loader in ranks(images, size, **options)), strict=True)
    return [
        tuple(torch.cat([getattr(batch, name) for batch in step]) for name in ("ids", "images", "labels"))
        for step in passes
    ]


def assert_equal_steps(got, expected):
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_images_are_normalized_per_channel(dtype):
    images = random_images(9, channels=3)
    batch = next(ImageLoader(images, LoaderOptions(batch_size=9, shuffle=False, dtype=dtype)).epoch())
    mean = torch.tensor(images.mean, dtype=torch.float64).view(1, 3, 1, 1)
    std = torch.tensor(images.std, dtype=torch.float64).view(1, 3, 1, 1)
    expected = (images.images.double() / 255 - mean) / std
    assert batch.images.dtype == dtype
    error = (batch.images.double() - expected).abs().max()
    assert error <= 8 * torch.finfo(dtype).eps * expected.abs().max()
    assert torch.equal(batch.labels, images.labels)


def test_images_with_another_largest_value_than_255_are_normalized():
    digits = load("digits", "train")
    options = LoaderOptions(batch_size=len(digits), shuffle=False, dtype=torch.float64)
    batch = next(ImageLoader(digits, options).epoch())
    assert batch.images.mean().item() == pytest.approx(0, abs=1e-9)
    assert batch.images.std(unbiased=False).item() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("augment", [None, parse_augment("crop:2,flip")])
def test_the_shards_of_all_ranks_equal_the_serial_batch_bit_by_bit(size, augment):
    images, position = random_images(53, channels=2), Position(seed=4, epoch=1)
    options = {"batch_size": 8, "augment": augment}
    assert_equal_steps(
        global_batches(images, size, position, **options), global_batches(images, 1, position, **options)
    )


@pytest.mark.parametrize("size", SIZES)
def test_an_interrupted_epoch_continues_with_any_number_of_ranks(size):
    images, begin = random_images(53), Position(seed=4)
    options = {"batch_size": 8, "augment": parse_augment("crop:1")}
    whole = global_batches(images, 1, begin, **options)
    batches = list(ImageLoader(images, LoaderOptions(**options)).epoch(begin))
    for cut, batch in enumerate(batches[:-1], start=1):
        assert_equal_steps(global_batches(images, size, batch.after, **options), whole[cut:])
    assert batches[-1].after == Position(4, 1)


@pytest.mark.parametrize("size", SIZES)
def test_an_unshuffled_epoch_has_each_sample_once_and_in_order(size):
    images = random_images(53)
    steps = global_batches(images, size, Position(), batch_size=8, shuffle=False)
    assert torch.cat([ids for ids, _, _ in steps]).tolist() == list(range(53))


def test_a_rank_without_samples_gets_an_empty_batch_of_weight_0():
    images = random_images(9, channels=3)
    last = [list(loader.epoch())[-1] for loader in ranks(images, 3, batch_size=4)]
    assert [len(batch.labels) for batch in last] == [1, 0, 0]
    assert [batch.weight for batch in last] == [3.0, 0.0, 0.0]
    assert {batch.global_count for batch in last} == {1}
    assert last[2].images.shape == (0, 3, 6, 6)


def test_an_empty_batch_can_be_augmented():
    augment = parse_augment("crop:2,flip")
    last = [list(loader.epoch())[-1] for loader in ranks(random_images(9), 3, batch_size=4, augment=augment)]
    assert last[2].images.shape == (0, 1, 6, 6)


def test_the_images_of_the_data_set_are_not_changed():
    images = random_images(20)
    before = images.images.clone()
    for _ in ImageLoader(images, LoaderOptions(batch_size=7, augment=parse_augment("crop:2,flip"))).epoch():
        pass
    assert torch.equal(images.images, before)


def test_each_epoch_has_its_own_order():
    loader = ImageLoader(random_images(40), LoaderOptions(batch_size=40))
    orders = [tuple(next(loader.epoch(Position(0, epoch))).ids.tolist()) for epoch in range(3)]
    assert len(set(orders)) == 3


def test_the_length_of_a_loader_is_its_number_of_steps():
    loader = ImageLoader(random_images(53), LoaderOptions(batch_size=8))
    assert len(list(loader.epoch())) == len(loader)


def test_a_global_batch_smaller_than_the_world_size_is_refused():
    with pytest.raises(UsageError, match=r"global batch of 2 .* 3 workers"):
        ImageLoader(random_images(9), LoaderOptions(batch_size=2), place=Place(size=3))


def test_mnist_steps_use_the_same_samples_at_1_2_and_3_workers():
    images = load("mnist", "test", data_dir=shared_data("mnist"))
    passes = [
        zip(*(loader.epoch(Position(1)) for loader in ranks(images, size, batch_size=256)), strict=True)
        for size in (1, 2, 3)
    ]
    counted = 0
    for steps in zip(*passes, strict=True):
        ids = [torch.cat([batch.ids for batch in step]) for step in steps]
        assert torch.equal(ids[0], ids[1])
        assert torch.equal(ids[0], ids[2])
        counted += len(ids[0])
    assert counted == 10000


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("parts", [2, 4])
def test_micro_batches_have_the_same_samples_with_any_number_of_ranks(size, parts):
    images, position = random_images(53), Position(seed=4, epoch=1)
    options = {"batch_size": 24, "augment": parse_augment("crop:1")}
    whole = global_batches(images, 1, position, **options)
    micro = global_batches(images, size, position, accumulate=parts, **options)
    assert_equal_steps(micro, global_batches(images, 1, position, accumulate=parts, **options))
    assert torch.equal(torch.cat([ids for ids, _, _ in micro]), torch.cat([ids for ids, _, _ in whole]))
    assert len(micro) == 3 * parts


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [48, 49, 53])
def test_weighted_means_over_micro_batches_add_up_to_the_mean_of_the_step(size, count):
    images = random_images(count)
    sums, steps = {}, {}
    for loader in ranks(images, size, batch_size=24, accumulate=4):
        step = 0
        for batch in loader.epoch(Position(2)):
            labels = batch.labels.double()
            mean = labels.mean() * batch.weight if len(labels) else 0.0
            sums[step] = sums.get(step, 0.0) + mean / size
            steps.setdefault(step, set()).update(batch.ids.tolist())
            step += batch.last_of_step
    assert sorted(sample for ids in steps.values() for sample in ids) == list(range(count))
    for step, ids in steps.items():
        assert sums[step].item() == pytest.approx(images.labels[sorted(ids)].double().mean().item())


def test_only_the_last_micro_batch_ends_a_step_and_has_the_position_after_it():
    batches = list(
        ImageLoader(random_images(10), LoaderOptions(batch_size=8, accumulate=4)).epoch(Position(1))
    )
    assert [batch.last_of_step for batch in batches] == [False, False, False, True, False, True]
    assert [batch.global_count for batch in batches] == [2, 2, 2, 2, 1, 1]
    assert [batch.after for batch in batches if batch.last_of_step] == [Position(1, 0, 8), Position(1, 1)]
