"""Lists the networks by name; a new one needs an entry here, and a file if it is of a new type."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from torch import nn

from samestep.base.errors import UsageError
from samestep.base.machine.description import machine
from samestep.base.units import bytes_text, count_text, whole
from samestep.training.models.networks import LAYOUTS, ConvNet, ResNet, ResNet9, Stem

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
