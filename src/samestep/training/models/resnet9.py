"""Defines a small residual network that trains on CIFAR-10 in few epochs.

Its architecture is based on D. Page's entry to DAWNBench (Coleman et al., 2017): one convolution, then three
stages, of which the first and the last have a residual pair; pooling instead of strides; and scores scaled
down, so that a large learning rate does not make them too large early.
"""

import torch
from torch import Tensor, nn

SCORE_SCALE = 0.125


class ResNet9(nn.Module):
    """Eight convolutions and one linear layer.

    It maps images of shape (samples, channels, height, width) to class scores of shape (samples, classes).

    Args:
        channels: channels of an image.
        classes: number of classes.
        width: channels after the first convolution; later stages have 2, 4 and 8 times as many.
    """

    def __init__(self, *, channels: int = 3, classes: int = 10, width: int = 64) -> None:
        super().__init__()
        self.prep = _layer(channels, width)
        self.layer1 = nn.Sequential(_layer(width, 2 * width, pool=True), _Residual(2 * width))
        self.layer2 = _layer(2 * width, 4 * width, pool=True)
        self.layer3 = nn.Sequential(_layer(4 * width, 8 * width, pool=True), _Residual(8 * width))
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.fc = nn.Linear(8 * width, classes, bias=False)

    @staticmethod
    def parameter_count(*, channels: int, classes: int, width: int) -> int:
        """Return the number of parameters of a network without building it.

        Args:
            channels: see the class.
            classes: see the class.
            width: see the class.
        """
        sides = ((channels, 1), (width, 2), (2 * width, 2), (2 * width, 2), (2 * width, 4), (4 * width, 8))
        layers = [(inputs, times * width) for inputs, times in (*sides, (8 * width, 8), (8 * width, 8))]
        return sum((9 * inputs + 2) * outputs for inputs, outputs in layers) + 8 * width * classes

    def forward(self, images: Tensor) -> Tensor:
        """Return the class scores of `images`."""
        x = self.layer3(self.layer2(self.layer1(self.prep(images))))
        scores: Tensor = self.fc(torch.flatten(self.pool(x), 1))
        return scores * SCORE_SCALE


class _Residual(nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.added = nn.Sequential(_layer(channels, channels), _layer(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.added(x)
        return result


def _layer(inputs: int, outputs: int, *, pool: bool = False) -> nn.Sequential:
    """Return convolution, pooling, batch norm and ReLU; pooling comes early to reduce the work after it."""
    pooling = [nn.MaxPool2d(2)] if pool else []
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(convolution, *pooling, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))
