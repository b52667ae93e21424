"""From pixels to what a network takes: the same arithmetic for every kind of image set."""

from typing import Protocol

import torch
from torch import Tensor


class Pixels(Protocol):
    """What has to be known of images in order to normalise them."""

    @property
    def mean(self) -> tuple[float, ...]:
        """Per channel, on the scale where `white` is 1."""

    @property
    def std(self) -> tuple[float, ...]:
        """As `mean`."""

    @property
    def white(self) -> int:
        """The largest value a pixel can have."""


class Normalise:
    """Turns uint8 images into numbers of mean 0 and standard deviation 1, as whole batches.

    Args:
        pixels: mean, std and white of the training split.
        dtype: what the images become.
        device: where they are.
    """

    def __init__(self, pixels: Pixels, dtype: torch.dtype, device: torch.device) -> None:
        # (x / white - mean) / std = x * scale - shift, in two passes over the batch
        mean = torch.tensor(pixels.mean, dtype=torch.float64).view(1, -1, 1, 1)
        std = torch.tensor(pixels.std, dtype=torch.float64).view(1, -1, 1, 1)
        self._dtype = dtype
        self._scale = (1 / (pixels.white * std)).to(device, dtype)
        self._shift = (mean / std).to(device, dtype)

    def __call__(self, images: Tensor) -> Tensor:
        """Return uint8 (n, channels, height, width) normalised."""
        return images.to(self._dtype).mul_(self._scale).sub_(self._shift)
