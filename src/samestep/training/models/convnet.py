"""Defines a small convolutional network, as in many tutorials."""

import torch
from torch import Tensor, nn


class ConvNet(nn.Module):
    """Two 5x5 convolutions of 16 and 32 channels and one linear layer.

    Each convolution is followed by batch norm, ReLU and 2x2 pooling.

    It maps images of shape (samples, channels, size, size) to class scores of shape (samples, classes).

    Args:
        channels: channels of an image.
        size: height and width of an image in pixels; a multiple of 4.
        classes: number of classes.
        batch_norm: False omits the batch norms.
    """

    def __init__(
        self, *, channels: int = 1, size: int = 28, classes: int = 10, batch_norm: bool = True
    ) -> None:
        super().__init__()
        if size % 4:
            raise ValueError(f"size is {size}; use a multiple of 4, because images are pooled twice by 2")
        self.layer1 = _layer(channels, 16, batch_norm=batch_norm)
        self.layer2 = _layer(16, 32, batch_norm=batch_norm)
        self.fc = nn.Linear(32 * (size // 4) ** 2, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the class scores of `images`."""
        scores: Tensor = self.fc(torch.flatten(self.layer2(self.layer1(images)), 1))
        return scores


def _layer(inputs: int, outputs: int, *, batch_norm: bool) -> nn.Sequential:
    norm = [nn.BatchNorm2d(outputs)] if batch_norm else []
    return nn.Sequential(nn.Conv2d(inputs, outputs, 5, padding=2), *norm, nn.ReLU(), nn.MaxPool2d(2))
