"""Augments batches of images with per-sample randomness, which does not depend on rank or batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.training.data.sample_random import integers, rehash

Augment: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Maps uint8 images (n, channels, height, width) and 64 random bits per image, int64 (n,), to new images. The
bits depend on (seed, epoch, sample id) alone; see `samestep.training.data.sample_random`."""

Padding: TypeAlias = Literal["zeros", "reflect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomCrop:
    """A random crop of each image, padded by `pad` pixels with zeros or by reflection."""

    pad: int
    """Padding at each side, in pixels."""
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

    side: int
    """Side of the square, in pixels."""

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

    Args:
        spec: see `parse_augment`.
        shape: channels, height and width.

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
