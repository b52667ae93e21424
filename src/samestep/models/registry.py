"""The networks by name. Adding one: an entry here, and its file if it is of a new kind."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from torch import nn

from samestep.base.errors import UsageError
from samestep.base.machine import machine
from samestep.base.units import bytes_text, count_text, whole
from samestep.models.convnet import ConvNet
from samestep.models.resnet import LAYOUTS, ResNet, Stem
from samestep.models.resnet9 import ResNet9

Shape: TypeAlias = tuple[int, int, int]
"""Channels, height and width of an image."""

_TRAINED_BYTES = 8
"""Of each parameter: its value and its gradient, in float32."""

SMALL_SIDE = 64
"""Images with a shorter side enter a residual network by the CIFAR stem."""


def _convnet(shape: Shape, classes: int) -> nn.Module:
    channels, height, width = shape
    if height != width or height % 4:
        raise UsageError(
            f"--model convnet takes square images whose side is a multiple of 4, and these are {height} x "
            f"{width}. Use another --model, such as resnet18."
        )
    return ConvNet(channels=channels, size=height, classes=classes)


def _resnet9(shape: Shape, classes: int, *, width: int = 64) -> nn.Module:
    if min(shape[1:]) < 8:
        raise UsageError(
            f"--model resnet9 halves images three times, and these are {shape[1]} x {shape[2]}: use convnet."
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

    Args:
        name: a key of `MODELS`; ``resnet9:W`` is of another width, 64 being the usual one.
        shape: channels, height and width of an image.
        classes: number of classes.

    Raises:
        UsageError: there is no such network, it cannot take such images, or it fits no memory.
    """
    plain, colon, text = name.partition(":")
    if plain not in MODELS or (colon and (plain != "resnet9" or not whole(text))):
        raise UsageError(
            f"no model is called {name!r}. Use one of: {', '.join(MODELS)}; or resnet9:W, of width W."
        )
    if not colon:
        return MODELS[plain](shape, classes)
    width = int(text)
    _check_fits(name, ResNet9.parameter_count(channels=shape[0], classes=classes, width=width))
    return _resnet9(shape, classes, width=width)


def _check_fits(name: str, parameters: int) -> None:
    """Refuse a network whose weights and gradients do not fit this machine's memory."""
    needed, there = _TRAINED_BYTES * parameters, machine().memory_bytes
    if needed > there:
        raise UsageError(
            f"--model {name} has {count_text(parameters)} parameters, whose weights and gradients take "
            f"{bytes_text(needed)}, and this machine has {bytes_text(there)} of memory. Use a smaller width."
        )
