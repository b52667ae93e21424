"""Defines and lists the built-in networks: a small ConvNet, ResNet-9, and ResNets of 18 to 152 layers.

All map images of shape (samples, channels, height, width) to class scores of shape (samples, classes).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from samestep.base.errors import UsageError
from samestep.base.machine.description import machine
from samestep.base.units import bytes_text, count_text, whole


class ConvNet(nn.Module):
    """Two 5x5 convolutions, of 16 and 32 channels with batch norm, ReLU and 2x2 pooling; one linear layer.

    The height and width of images, `size`, must be a multiple of 4.
    """

    def __init__(
        self, *, channels: int = 1, size: int = 28, classes: int = 10, batch_norm: bool = True
    ) -> None:
        super().__init__()
        if size % 4:
            raise ValueError(f"size is {size}; use a multiple of 4, because images are pooled twice by 2")
        self.layer1 = _pooled_layer(channels, 16, batch_norm=batch_norm)
        self.layer2 = _pooled_layer(16, 32, batch_norm=batch_norm)
        self.fc = nn.Linear(32 * (size // 4) ** 2, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the class scores of `images`."""
        scores: Tensor = self.fc(torch.flatten(self.layer2(self.layer1(images)), 1))
        return scores


def _pooled_layer(inputs: int, outputs: int, *, batch_norm: bool) -> nn.Sequential:
    norm = [nn.BatchNorm2d(outputs)] if batch_norm else []
    return nn.Sequential(nn.Conv2d(inputs, outputs, 5, padding=2), *norm, nn.ReLU(), nn.MaxPool2d(2))


SCORE_SCALE = 0.125  # of ResNet-9; see its class


class ResNet9(nn.Module):
    """Eight convolutions and one linear layer, which train on CIFAR-10 in few epochs.

    The architecture is based on D. Page's entry to DAWNBench (Coleman et al., 2017): one convolution, then
    three stages, of which the first and the last have a residual pair; pooling instead of strides; and scores
    scaled down, so that a large learning rate does not make them too large early. The first convolution has
    `width` channels, and later stages have 2, 4 and 8 times as many.
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
        """Return the number of parameters of a network without building it."""
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
    """A residual network of 18 to 152 layers.

    Source: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016. As in most current
    implementations, a bottleneck has its stride in the 3x3 convolution, not in the first one ("v1.5").
    Parameters have torchvision's names, so that weights load in both directions.
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


Shape: TypeAlias = tuple[int, int, int]
"""Channels, height and width of an image."""

_TRAINED_BYTES = 8  # bytes of each parameter: its value and its gradient, in float32

SMALL_SIDE = 64
"""Residual networks have the CIFAR stem for images with a side below this."""


def _convnet(shape: Shape, classes: int) -> nn.Module:
    channels, height, width = shape
    if height != width or height % 4:
        raise UsageError(
            f"--model convnet needs square images with a side that is a multiple of 4, and these are "
            f"{height} x {width}. Use another --model, such as resnet18."
        )
    return ConvNet(channels=channels, size=height, classes=classes)


def _resnet9(shape: Shape, classes: int, *, width: int = 64) -> nn.Module:
    if min(shape[1:]) < 8:
        raise UsageError(
            f"--model resnet9 needs images of 8 x 8 or more, and these are {shape[1]} x {shape[2]}. Use "
            "convnet."
        )
    return ResNet9(channels=shape[0], classes=classes, width=width)


def _resnet(shape: Shape, classes: int, *, depth: int) -> nn.Module:
    stem: Stem = "cifar" if min(shape[1:]) < SMALL_SIDE else "imagenet"
    return ResNet(depth, channels=shape[0], classes=classes, stem=stem)


MODELS: Mapping[str, Callable[[Shape, int], nn.Module]] = {
    "convnet": _convnet,
    "resnet9": _resnet9,
    **{f"resnet{depth}": partial(_resnet, depth=depth) for depth in LAYOUTS},
}


def build(name: str, *, shape: Shape, classes: int) -> nn.Module:
    """Return the untrained network called `name` for images of `shape`.

    `name` is a key of `MODELS`, or ``resnet9:W`` for another width than 64.

    Raises:
        UsageError: there is no such network, or it does not work for such images or fit into memory.
    """
    plain, colon, text = name.partition(":")
    if plain not in MODELS or (colon and (plain != "resnet9" or not whole(text))):
        raise UsageError(
            f"there is no model {name!r}. Use one of: {', '.join(MODELS)}; or resnet9:W, of width W."
        )
    if not colon:
        return MODELS[plain](shape, classes)
    width = int(text)
    _check_fits(name, ResNet9.parameter_count(channels=shape[0], classes=classes, width=width))
    return _resnet9(shape, classes, width=width)


def _check_fits(name: str, parameters: int) -> None:
    """Refuse a network whose weights and gradients do not fit into this machine's memory."""
    needed, there = _TRAINED_BYTES * parameters, machine().memory_bytes
    if needed > there:
        raise UsageError(
            f"--model {name} has {count_text(parameters)} parameters, whose weights and gradients take "
            f"{bytes_text(needed)}, and this machine has {bytes_text(there)} of memory. Use a smaller width."
        )
