"""Imports torchvision beside a CPU build of torch."""

import importlib
from importlib.util import find_spec

import pytest
import torch


def torchvision():
    """Return torchvision, or skip the test where it is not installed.

    Its compiled operators are missing beside a CPU build, and it will not be imported without their names.
    """
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        torchvision.library = library  # its names go with it
        return importlib.import_module("torchvision")
