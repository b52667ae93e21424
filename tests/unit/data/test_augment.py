"""Augmentation: what happens to a sample depends on (seed, epoch, id) alone."""

import pytest
import torch
import torch.nn.functional as F

from samestep.base.errors import UsageError
from samestep.data.augment import ShiftFlip
from samestep.data.draws import integers, sample_words
from samestep.sharding.position import Position
from support.image_sets import random_images

WORD = 2**64 - 1
IDS = torch.arange(4096)


def mixed(x):
    """SplitMix64's finaliser, in plain integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


@pytest.mark.parametrize("position", [Position(), Position(1, 2, 3), Position(2**64 - 1, 5)])
def test_words_are_those_of_unsigned_arithmetic(position):
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
def test_integers_are_spread_evenly(below, bit):
    drawn = integers(sample_words(IDS, Position(3)), below, bit=bit)
    counts = drawn.bincount(minlength=below)
    assert len(counts) == below
    expected = len(IDS) / below
    chi_squared = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_squared < 30  # for 8 degrees of freedom, exceeded by chance once in 5,000; the draw is fixed


def test_a_sample_is_changed_alike_in_any_company():
    images, augment = random_images(40, channels=3).images, ShiftFlip(shift=2, flip=True)
    ids, position = torch.arange(40), Position(5)
    together = augment(images, sample_words(ids, position))
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    for part in order.split(7):
        assert torch.equal(augment(images[part], sample_words(part, position)), together[part])


def test_epochs_change_a_sample_differently():
    images, ids, augment = random_images(40).images, torch.arange(40), ShiftFlip(shift=2)
    first, second = (augment(images, sample_words(ids, Position(5, epoch))) for epoch in (0, 1))
    assert not torch.equal(first, second)


def test_a_shift_is_a_crop_of_the_padded_image():
    images = random_images(64, channels=2).images
    words = sample_words(torch.arange(64), Position(9))
    moved = ShiftFlip(shift=3)(images, words)
    tops, lefts = (integers(words, 7, bit=bit).tolist() for bit in (0, 20))
    assert {*tops} == {*lefts} == set(range(7))
    for image, result, top, left in zip(F.pad(images, (3, 3, 3, 3)), moved, tops, lefts, strict=True):
        assert torch.equal(result, image[:, top : top + 6, left : left + 6])


def test_a_flip_exchanges_left_and_right_in_about_half_of_the_cases():
    images = random_images(400).images
    changed = ShiftFlip(flip=True)(images, sample_words(torch.arange(400), Position()))
    kept = [torch.equal(a, b) for a, b in zip(changed, images, strict=True)]
    mirrored = [torch.equal(a, b.flip(2)) for a, b in zip(changed, images, strict=True)]
    assert all(k != m for k, m in zip(kept, mirrored, strict=True))
    assert 150 < sum(mirrored) < 250


def test_a_negative_shift_is_refused():
    with pytest.raises(UsageError, match="shift=-1"):
        ShiftFlip(shift=-1)
