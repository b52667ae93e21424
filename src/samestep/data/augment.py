"""Changing images at random, as whole batches; the same for a sample wherever it is drawn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.data.draws import integers, sample_words
from samestep.sharding.position import Position

Augment: TypeAlias = Callable[[Tensor, Tensor, Position], Tensor]
"""Takes uint8 images (n, channels, height, width), their ids (n,) and the position; returns new images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftFlip:
    """Moves each image by up to `shift` pixels each way, and mirrors it in half of the cases.

    What moves in from outside is 0: this is the random crop of a padded image.
    """

    shift: int = 0
    """Largest move, in pixels."""
    flip: bool = False
    """Whether left and right may be exchanged."""

    def __post_init__(self) -> None:
        if self.shift < 0:
            raise UsageError(f"shift={self.shift} pixels; use 0 or more")

    def __call__(self, images: Tensor, ids: Tensor, position: Position) -> Tensor:
        """Return the changed images; a pure function of (seed, epoch, id) for each of them."""
        words = sample_words(ids, position)
        if self.shift:
            span = 2 * self.shift + 1
            images = _crop(
                F.pad(images, (self.shift,) * 4),
                top=integers(words, span, bit=0),
                left=integers(words, span, bit=20),
                size=(images.shape[2], images.shape[3]),
            )
        if self.flip:
            mirrored = integers(words, 2, bit=40).bool()
            images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
        return images


def _crop(padded: Tensor, *, top: Tensor, left: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut a window of `size` from each image, at (top, left)."""
    # A view of every window there is, (n, channels, tops, lefts, height, width): picking one of each image
    # copies whole windows, which is five times as fast as gathering pixels (measured, CPU).
    windows = padded.unfold(2, size[0], 1).unfold(3, size[1], 1)
    return windows[torch.arange(len(padded), device=padded.device), :, top, left]
