"""Augments batches of images with per-sample random numbers, which do not depend on rank or batch.

With a stream of random numbers, the augmentation of a sample would depend on its batch and its rank. Here
each sample has 64 bits hashed from ``(seed, epoch, id)``, on any device, in a few kernels per batch. Source
of the mixing function: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014
(SplitMix64; the constants are David Stafford's variant 13).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.parallel.sharding import Position

_WORD = 2**64 - 1  # all bits of a word
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio, odd
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of variant 13


def sample_words(ids: Tensor, position: Position) -> Tensor:
    """Return 64 random bits for each sample of an epoch, int64, in the shape and on the device of `ids`."""
    key = _mix((_mix((position.seed + _GOLDEN) & _WORD) + position.epoch) & _WORD)
    # int64 arithmetic wraps: it is arithmetic modulo 2**64 in two's complement.
    return _mixed(ids * _signed(_GOLDEN) + _signed(key))


def rehash(words: Tensor, number: int) -> Tensor:
    """Return different bits of each word for each `number`; for 0 the words themselves."""
    return words if number == 0 else _mixed(words + _signed((number * _GOLDEN) & _WORD))


def integers(words: Tensor, below: int, *, bit: int) -> Tensor:
    """Return integers 0 .. below-1 from 20 bits of each word, starting at `bit`.

    They are uniform up to a relative error of ``below / 2**20``.
    """
    field = (words >> bit) & 0xFFFFF
    return (field * below) >> 20


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift right logically: torch's ``>>`` on int64 is an arithmetic shift."""
    return (x >> bits) & (_WORD >> bits)


def _mixed(x: Tensor) -> Tensor:
    """Mix each word; see `_mix`."""
    x = (x ^ _shifted(x, 30)) * _signed(_FIRST)
    x = (x ^ _shifted(x, 27)) * _signed(_SECOND)
    return x ^ _shifted(x, 31)


def _mix(x: int) -> int:
    """Mix one word by the finalizer of SplitMix64."""
    x = ((x ^ (x >> 30)) * _FIRST) & _WORD
    x = ((x ^ (x >> 27)) * _SECOND) & _WORD
    return x ^ (x >> 31)


def _signed(word: int) -> int:
    """Return the int64 that has the bits of the unsigned `word`."""
    return word - 2**64 if word >= 2**63 else word


Augment: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Maps uint8 images (n, channels, height, width) and 64 random bits per image, int64 (n,), to new images. The
bits depend on (seed, epoch, sample id) alone; see `samestep.training.data.augmentation`."""

Padding: TypeAlias = Literal["zeros", "reflect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomCrop:
    """A random crop of each image, padded by `pad` pixels with zeros or by reflection."""

    pad: int  # padding at each side, in pixels
    padding: Padding = "zeros"

    def __call__(self, images: Tensor, words: Tensor) -> Tensor:
        """Return the changed images; each is a function of itself and its word."""
        height, width = images.shape[2:]
        self.check(height, width)
        padded = _pad(images, self.pad, self.padding)
        span = 2 * self.pad + 1
        top, left = integers(words, span, bit=0), integers(words, span, bit=20)
        return _crop(padded, top=top, left=left, size=(height, width))

    def check(self, height: int, width: int) -> None:
        """Refuse images that are too small for padding by reflection.

        Raises:
            UsageError: a side has `pad` pixels or fewer.
        """
        if self.padding == "reflect" and self.pad >= min(height, width):
            raise UsageError(
                f"--augment crop:{self.pad}:reflect needs images with more than {self.pad} pixels a side, "
                f"and these are {height} x {width}. Use fewer pixels."
            )


@dataclass(frozen=True, slots=True)
class RandomFlip:
    """A horizontal flip with probability 1/2."""

    def __call__(self, images: Tensor, words: Tensor) -> Tensor:
        """Return the changed images; each is a function of itself and its word."""
        mirrored = integers(words, 2, bit=40).bool()
        return torch.where(mirrored[:, None, None, None], images.flip(3), images)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutout:
    """A square of the image's mean value at a random center, clipped at the edges of the image.

    Source: DeVries, Taylor, "Improved regularization of convolutional neural networks with cutout", 2017
    (arXiv:1708.04552). The paper uses the mean color of the data set.
    """

    side: int  # side of the square, in pixels

    def __call__(self, images: Tensor, words: Tensor) -> Tensor:
        """Return the changed images; each is a function of itself and its word."""
        height, width = images.shape[2:]
        rows = self._covered(integers(words, height, bit=0), height)
        columns = self._covered(integers(words, width, bit=20), width)
        square = rows[:, None, :, None] & columns[:, None, None, :]  # (n, 1, height, width)
        grey = images.float().mean((2, 3), keepdim=True).round().to(images.dtype)
        return torch.where(square, grey, images)

    def _covered(self, center: Tensor, length: int) -> Tensor:
        """Return a mask of the pixels that each square covers along one side, (n, length)."""
        pixels = torch.arange(length, device=center.device)
        first = (center - self.side // 2)[:, None]
        return (pixels >= first) & (pixels < first + self.side)


@dataclass(frozen=True, slots=True)
class Chain:
    """Several augmentations in sequence, each with different random bits."""

    parts: tuple[Augment, ...]

    def __call__(self, images: Tensor, words: Tensor) -> Tensor:
        """Return the changed images; each is a function of itself and its word."""
        if not len(words):
            return images
        for number, part in enumerate(self.parts):
            images = part(images, rehash(words, number))
        return images


def parse_augment(spec: str) -> Augment | None:
    """Return the augmentation that a setting such as ``crop:4,flip,cutout:8`` names; None for an empty one.

    The parts are applied in the given order::

        crop:PIXELS            a random crop of the image, padded with zeros
        crop:PIXELS:reflect    a random crop of the image, padded by reflection
        flip                   a horizontal flip with probability 1/2
        cutout:PIXELS          a blank square of that side

    Raises:
        UsageError: a part is none of these.
    """
    return Chain(_parts(spec)) if spec else None


def check_augment(spec: str, *, shape: tuple[int, int, int]) -> None:
    """Refuse a setting that is invalid, or impossible for images of a shape.

    Raises:
        UsageError: it is invalid or impossible.
    """
    for part in _parts(spec):
        if isinstance(part, RandomCrop):
            part.check(*shape[1:])


def _parts(spec: str) -> tuple[Augment, ...]:
    return tuple(_part(text.strip()) for text in spec.split(",")) if spec else ()


def _part(text: str) -> Augment:
    match text.split(":"):
        case ["flip"]:
            return RandomFlip()
        case ["crop", pixels] if _is_count(pixels):
            return RandomCrop(pad=int(pixels))
        case ["crop", pixels, "reflect"] if _is_count(pixels):
            return RandomCrop(pad=int(pixels), padding="reflect")
        case ["cutout", pixels] if _is_count(pixels):
            return Cutout(side=int(pixels))
    raise UsageError(
        f"--augment {text!r} is not one of crop:PIXELS, crop:PIXELS:reflect, flip, cutout:PIXELS (1 pixel or "
        "more). Separate several by commas: crop:4,flip."
    )


def _is_count(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


def _pad(images: Tensor, pad: int, padding: Padding) -> Tensor:
    if padding == "zeros":
        return F.pad(images, (pad,) * 4)
    return _reflected(_reflected(images, pad, dim=2), pad, dim=3)  # torch has no reflection padding of uint8


def _reflected(images: Tensor, pad: int, *, dim: int) -> Tensor:
    """Pad images at both ends of `dim` by reflection, without repeating the edge."""
    length = images.shape[dim]
    before = images.narrow(dim, 1, pad).flip(dim)
    after = images.narrow(dim, length - 1 - pad, pad).flip(dim)
    return torch.cat([before, images, after], dim)


def _crop(padded: Tensor, *, top: Tensor, left: Tensor, size: tuple[int, int]) -> Tensor:
    """Crop a window of `size` from each image, at (top, left)."""
    n, channels, tall, wide = padded.shape
    height, width = size
    # Copying whole rows by their offsets in the flat batch is 4 to 8 times as fast as gathering pixels or
    # windows of an unfolded view (measured on a CPU).
    begins = torch.arange(0, padded.numel(), wide, device=padded.device).view(n, channels, tall)
    begins = begins[:, :, :height] + (top * wide + left)[:, None, None]  # (n, channels, height)
    every_row = padded.flatten().unfold(0, width, 1)  # (offsets, width), an overlapping view
    return every_row.index_select(0, begins.flatten()).view(n, channels, height, width)
