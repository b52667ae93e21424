"""Changing images at random, as whole batches; the same for a sample wherever it is drawn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.data.draws import integers, rehash

Augment: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Takes uint8 images (n, channels, height, width) and 64 random bits for each, int64 (n,); returns new
images. The bits are a function of (seed, epoch, sample id) alone; see `samestep.data.draws`."""

Padding: TypeAlias = Literal["zeros", "reflect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomCrop:
    """Moves each image by up to `pad` pixels each way: a random crop of the padded image.

    What moves in from outside is 0, or the image mirrored at its edge.
    """

    pad: int
    """Largest move, in pixels."""
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
        """Refuse images that have too few pixels to be mirrored.

        Raises:
            UsageError: they have.
        """
        if self.padding == "reflect" and self.pad >= min(height, width):
            raise UsageError(
                f"--augment crop:{self.pad}:reflect mirrors {self.pad} pixels of images of {height} x "
                f"{width}: use fewer than a side has."
            )


@dataclass(frozen=True, slots=True)
class RandomFlip:
    """Exchanges left and right in half of the cases."""

    def __call__(self, images: Tensor, words: Tensor) -> Tensor:
        """Return the changed images; each is a function of itself and its word."""
        mirrored = integers(words, 2, bit=40).bool()
        return torch.where(mirrored[:, None, None, None], images.flip(3), images)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutout:
    """Blanks a square of each image, its centre anywhere: near an edge less of it is seen.

    Source: DeVries, Taylor, "Improved regularization of convolutional neural networks with cutout", 2017
    (arXiv:1708.04552). There the square is the mean colour; here it is the mean of the image itself, which
    is as little of a signal and needs nothing but the image.
    """

    side: int
    """Of the square, in pixels."""

    def __call__(self, images: Tensor, words: Tensor) -> Tensor:
        """Return the changed images; each is a function of itself and its word."""
        height, width = images.shape[2:]
        rows = self._within(integers(words, height, bit=0), height)
        columns = self._within(integers(words, width, bit=20), width)
        square = rows[:, None, :, None] & columns[:, None, None, :]  # (n, 1, height, width)
        grey = images.float().mean((2, 3), keepdim=True).round().to(images.dtype)
        return torch.where(square, grey, images)

    def _within(self, centre: Tensor, length: int) -> Tensor:
        """Return which of `length` places each square covers, (n, length)."""
        places = torch.arange(length, device=centre.device)
        first = (centre - self.side // 2)[:, None]
        return (places >= first) & (places < first + self.side)


@dataclass(frozen=True, slots=True)
class Chain:
    """Several changes one after the other, each with random bits of its own."""

    parts: tuple[Augment, ...]

    def __call__(self, images: Tensor, words: Tensor) -> Tensor:
        """Return the changed images; each is a function of itself and its word."""
        if not len(words):
            return images
        for number, part in enumerate(self.parts):
            images = part(images, rehash(words, number))
        return images


def parse_augment(spec: str) -> Augment | None:
    """Return what a setting such as ``crop:4,flip,cutout:8`` means; None for an empty one.

    The parts, applied in the order in which they are said::

        crop:PIXELS            a random crop of the image padded with zeros
        crop:PIXELS:reflect    padded with its mirror image
        flip                   left and right exchanged in half of the cases
        cutout:PIXELS          a blank square of that side

    Raises:
        UsageError: a part that is none of these.
    """
    return Chain(_parts(spec)) if spec else None


def check_augment(spec: str, *, shape: tuple[int, int, int]) -> None:
    """Refuse a setting that means nothing, or cannot be done to images of a shape, before any is there.

    Args:
        spec: see `parse_augment`.
        shape: channels, height and width.

    Raises:
        UsageError: it is one of these.
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
        f"--augment {text!r} is none of crop:PIXELS, crop:PIXELS:reflect, flip, cutout:PIXELS, with 1 pixel "
        "or more; say several with commas: crop:4,flip."
    )


def _is_count(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


def _pad(images: Tensor, pad: int, padding: Padding) -> Tensor:
    if padding == "zeros":
        return F.pad(images, (pad,) * 4)
    return _mirrored(_mirrored(images, pad, dim=2), pad, dim=3)  # torch pads no uint8 by reflection


def _mirrored(images: Tensor, pad: int, *, dim: int) -> Tensor:
    """Continue images at both ends of `dim` by their mirror image; the edge itself is not repeated."""
    length = images.shape[dim]
    before = images.narrow(dim, 1, pad).flip(dim)
    after = images.narrow(dim, length - 1 - pad, pad).flip(dim)
    return torch.cat([before, images, after], dim)


def _crop(padded: Tensor, *, top: Tensor, left: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut a window of `size` from each image, at (top, left)."""
    n, channels, tall, wide = padded.shape
    height, width = size
    # Whole rows are copied, found by where they begin in the flat batch: 4 to 8 times as fast as picking
    # pixels, or windows of an unfolded view (measured, CPU).
    begins = torch.arange(0, padded.numel(), wide, device=padded.device).view(n, channels, tall)
    begins = begins[:, :, :height] + (top * wide + left)[:, None, None]  # (n, channels, height)
    every_row = padded.flatten().unfold(0, width, 1)  # (places, width), a view that overlaps itself
    return every_row.index_select(0, begins.flatten()).view(n, channels, height, width)
