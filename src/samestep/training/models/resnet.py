"""Defines residual networks of 18 to 152 layers.

Source: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016. As in most current
implementations, a bottleneck has its stride in the 3x3 convolution, not in the first one ("v1.5"). Parameters
have torchvision's names, so that weights load in both directions.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

Stem: TypeAlias = Literal["cifar", "imagenet"]
"""The first layers: ``imagenet`` is a 7x7 convolution and a pooling, each halving the sides; ``cifar`` is a
3x3 convolution that keeps them."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a residual connection."""

    expansion = 1

    def __init__(self, inputs: int, channels: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, channels, 3, stride=stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _convolution(channels, channels, 3)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = _shortcut(inputs, channels, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return x and what the block adds to it, rectified."""
        added = self.relu(self.bn1(self.conv1(x)))
        added = self.bn2(self.conv2(added))
        result: Tensor = self.relu(added + (x if self.downsample is None else self.downsample(x)))
        return result


class Bottleneck(nn.Module):
    """Convolutions of 1x1, 3x3 and 1x1, the last with four times the channels, with a residual connection."""

    expansion = 4

    def __init__(self, inputs: int, channels: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, channels, 1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _convolution(channels, channels, 3, stride=stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = _convolution(channels, 4 * channels, 1)
        self.bn3 = nn.BatchNorm2d(4 * channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, 4 * channels, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return x and what the block adds to it, rectified."""
        added = self.relu(self.bn1(self.conv1(x)))
        added = self.relu(self.bn2(self.conv2(added)))
        added = self.bn3(self.conv3(added))
        result: Tensor = self.relu(added + (x if self.downsample is None else self.downsample(x)))
        return result


Block: TypeAlias = type[BasicBlock] | type[Bottleneck]

LAYOUTS: Mapping[int, tuple[Block, tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
    152: (Bottleneck, (3, 8, 36, 3)),
}
"""Block type, and number of blocks in each of the four stages, by depth (table 1 of the paper)."""


class ResNet(nn.Module):
    """A residual network.

    It maps images of shape (samples, channels, height, width) to class scores of shape (samples, classes).

    Args:
        depth: number of layers, a key of `LAYOUTS`.
        channels: channels of an image.
        classes: number of classes.
        stem: type of the first layers.
    """

    def __init__(
        self, depth: int, *, channels: int = 3, classes: int = 1000, stem: Stem = "imagenet"
    ) -> None:
        super().__init__()
        block, stages = LAYOUTS[depth]
        small = stem == "cifar"
        self.conv1 = _convolution(channels, 64, 3) if small else _convolution(channels, 64, 7, stride=2)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool: nn.Module = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(block, 64, 64, stages[0], stride=1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, stages[1], stride=2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, stages[2], stride=2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, stages[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * block.expansion, classes)
        self.apply(_initialize)

    def forward(self, images: Tensor) -> Tensor:
        """Return the class scores of `images`."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return scores


def _stage(block: Block, inputs: int, channels: int, count: int, *, stride: int) -> nn.Sequential:
    first = block(inputs, channels, stride=stride)
    return nn.Sequential(first, *(block(channels * block.expansion, channels) for _ in range(count - 1)))


def _shortcut(inputs: int, outputs: int, *, stride: int) -> nn.Sequential | None:
    """Return the projection of a block's input to the shape of its output; None if they are equal."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_convolution(inputs, outputs, 1, stride=stride), nn.BatchNorm2d(outputs))


def _convolution(inputs: int, outputs: int, size: int, *, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


def _initialize(module: nn.Module) -> None:
    """Initialize convolutions by He et al., "Delving deep into rectifiers", ICCV 2015."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
