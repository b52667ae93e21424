"""Normalizes batches of uint8 images, with the same arithmetic for every type of image set."""

from typing import Protocol

import torch
from torch import Tensor


class Pixels(Protocol):
    """The statistics of an image set that normalization needs."""

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean per channel, with `white` scaled to 1."""

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation, as `mean`."""

    @property
    def white(self) -> int:
        """The largest possible value of a pixel."""


class Normalize:
    """A normalization of uint8 images to mean 0 and standard deviation 1.

    Args:
        pixels: mean, std and white of the training split.
        dtype: of the result.
        device: of the images.
    """

    def __init__(self, pixels: Pixels, dtype: torch.dtype, device: torch.device) -> None:
        # (x / white - mean) / std = x * scale - shift, in two passes over the batch
        mean = torch.tensor(pixels.mean, dtype=torch.float64).view(1, -1, 1, 1)
        std = torch.tensor(pixels.std, dtype=torch.float64).view(1, -1, 1, 1)
        self._dtype = dtype
        self._scale = (1 / (pixels.white * std)).to(device, dtype)
        self._shift = (mean / std).to(device, dtype)

    def __call__(self, images: Tensor) -> Tensor:
        """Return uint8 images (n, channels, height, width) as normalized numbers."""
        return images.to(self._dtype).mul_(self._scale).sub_(self._shift)
