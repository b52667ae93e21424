"""A convolutional network for MNIST: two blocks of convolution, normalization and pooling, then one layer."""

import torch
from torch import nn


def norm_layer(kind: str, channels: int) -> nn.Module:
    """Return batch norm, or group norm, whose result for a sample does not depend on the other samples."""
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(4, channels)


class ConvNet(nn.Module):
    """28 x 28 pixels, one channel, to the scores of ten classes."""

    def __init__(self, norm: str = "batch") -> None:
        super().__init__()
        self.features = nn.Sequential(*self.block(1, 16, norm), *self.block(16, 32, norm))
        self.classifier = nn.Linear(32 * 7 * 7, 10)

    @staticmethod
    def block(channels: int, features: int, norm: str) -> list[nn.Module]:
        convolution = nn.Conv2d(channels, features, kernel_size=5, padding=2)
        return [convolution, norm_layer(norm, features), nn.ReLU(), nn.MaxPool2d(2)]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images).flatten(1))
