"""The augmentation of a sample depends on (seed, epoch, id) alone."""

import pytest
import torch
import torch.nn.functional as F

from samestep.base.errors import UsageError
from samestep.parallel.sharding import Position
from samestep.training.data.augmentation import (
    Cutout,
    RandomCrop,
    RandomFlip,
    integers,
    parse_augment,
    rehash,
    sample_words,
)
from support.image_sets import random_images

WORD = 2**64 - 1
IDS = torch.arange(4096)


def mixed(x):
    """Return SplitMix64's finalizer of `x`, computed with Python integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


@pytest.mark.parametrize("position", [Position(), Position(1, 2, 3), Position(2**64 - 1, 5)])
def test_words_equal_those_of_unsigned_arithmetic(position):
    golden = 0x9E3779B97F4A7C15
    key = mixed((mixed((position.seed + golden) & WORD) + position.epoch) & WORD)
    expected = [mixed((i * golden + key) & WORD) for i in range(100)]
    assert [word & WORD for word in sample_words(IDS[:100], position).tolist()] == expected


def test_words_do_not_repeat_between_samples_epochs_and_seeds():
    positions = [Position(seed, epoch) for seed in range(4) for epoch in range(4)]
    words = torch.cat([sample_words(IDS, position) for position in positions])
    assert len(words.unique()) == len(words)


@pytest.mark.parametrize("below", [2, 5, 9])
@pytest.mark.parametrize("bit", [0, 20, 40])
def test_integers_are_distributed_evenly(below, bit):
    drawn = integers(sample_words(IDS, Position(3)), below, bit=bit)
    counts = drawn.bincount(minlength=below)
    assert len(counts) == below
    expected = len(IDS) / below
    chi_squared = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_squared < 30  # for 8 degrees of freedom, exceeded by chance once in 5,000; the draw is fixed


@pytest.mark.parametrize(
    "spec", ["crop:2", "crop:2:reflect", "flip", "cutout:3", "crop:2,flip,cutout:3", "flip,flip"]
)
def test_the_augmentation_of_a_sample_does_not_depend_on_its_batch(spec):
    images, augment = random_images(40, channels=3).images, parse_augment(spec)
    ids, position = torch.arange(40), Position(5)
    together = augment(images, sample_words(ids, position))
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    for part in order.split(7):
        assert torch.equal(augment(images[part], sample_words(part, position)), together[part])
    assert together.dtype is torch.uint8


def test_samples_are_augmented_differently_in_each_epoch():
    images, ids, augment = random_images(40).images, torch.arange(40), RandomCrop(pad=2)
    first, second = (augment(images, sample_words(ids, Position(5, epoch))) for epoch in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("padding", "mode"), [("zeros", "constant"), ("reflect", "reflect")])
def test_a_crop_is_a_window_of_the_padded_image(padding, mode):
    images = random_images(64, channels=2).images
    words = sample_words(torch.arange(64), Position(9))
    moved = RandomCrop(pad=3, padding=padding)(images, words)
    tops, lefts = (integers(words, 7, bit=bit).tolist() for bit in (0, 20))
    padded = F.pad(images.float(), (3, 3, 3, 3), mode=mode).to(torch.uint8)
    assert {*tops} == {*lefts} == set(range(7))
    for image, result, top, left in zip(padded, moved, tops, lefts, strict=True):
        assert torch.equal(result, image[:, top : top + 6, left : left + 6])


def test_about_half_of_the_images_are_flipped():
    images = random_images(400).images
    changed = RandomFlip()(images, sample_words(torch.arange(400), Position()))
    kept = [torch.equal(a, b) for a, b in zip(changed, images, strict=True)]
    mirrored = [torch.equal(a, b.flip(2)) for a, b in zip(changed, images, strict=True)]
    assert all(k != m for k, m in zip(kept, mirrored, strict=True))
    assert 150 < sum(mirrored) < 250


def test_a_cutout_is_a_square_of_the_mean_value_at_any_position():
    images = torch.arange(48, dtype=torch.uint8).view(1, 1, 6, 8).repeat(300, 2, 1, 1)
    changed = Cutout(side=3)(images, sample_words(torch.arange(300), Position()))
    centers = set()
    for image, result in zip(images, changed, strict=True):
        where = (result != image).any(0)
        rows, columns = where.any(1).nonzero().flatten().tolist(), where.any(0).nonzero().flatten().tolist()
        assert rows == list(range(rows[0], rows[-1] + 1))
        assert columns == list(range(columns[0], columns[-1] + 1))
        assert 2 <= len(rows) <= 3
        assert 2 <= len(columns) <= 3
        assert (result[:, where] == 24).all()  # 23.5, rounded to even
        centers.add((rows[0] + rows[-1], columns[0] + columns[-1]))
    assert len(centers) == 6 * 8


def test_the_parts_of_an_augmentation_draw_independent_bits():
    words = sample_words(IDS, Position(1))
    flips = [integers(rehash(words, number), 2, bit=40) for number in range(3)]
    for one, other in [(0, 1), (0, 2), (1, 2)]:
        assert 0.45 < (flips[one] == flips[other]).double().mean() < 0.55


def test_an_empty_batch_stays_empty():
    images = random_images(4).images[:0]
    assert parse_augment("crop:2,flip,cutout:2")(images, IDS[:0]).shape == images.shape


def test_an_empty_specification_is_no_augmentation():
    assert parse_augment("") is None


@pytest.mark.parametrize(
    "spec", ["crop", "crop:0", "crop:x", "crop:2:wrap", "flip:2", "cutout", "blur", "crop:2,,flip"]
)
def test_an_invalid_specification_is_refused(spec):
    with pytest.raises(UsageError, match=r"--augment .* crop:PIXELS"):
        parse_augment(spec)


def test_a_reflection_as_wide_as_the_image_is_refused():
    with pytest.raises(UsageError, match=r"--augment crop:6:reflect .* 6 pixels .* 6 x 6"):
        parse_augment("crop:6:reflect")(random_images(4).images, IDS[:4])
