"""Compiles the model or changes its memory format; the model's state dict keeps its keys."""

import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.training.settings import Settings


def in_memory_format(model: nn.Module, settings: Settings) -> nn.Module:
    """Return `model`, converted in place to channels-last if `settings.channels_last`."""
    if settings.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def compiled(model: nn.Module, settings: Settings) -> Callable[[Tensor], Tensor]:
    """Return the function that computes scores in training: `model` itself, or its compiled form.

    Both share weights and buffers. Save and evaluate `model`, because the compiled form's keys begin with
    ``_orig_mod.``. The compiler runs at the first call and again for a last batch of another size. With
    `settings.exact` it runs at each new size, because dynamic-shape code computes other bits. An empty local
    batch goes through `model`, because torch's compiler fails on it (torch 2.13).

    Raises:
        UsageError: this machine cannot compile the model.
    """
    if not settings.compile:
        return model
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    _check_compilers(device, env.snapshot())
    try:
        fast: Callable[[Tensor], Tensor] = torch.compile(
            model, dynamic=None if settings.exact is None else False
        )
    except RuntimeError as error:  # a Python that is too new for this torch
        raise UsageError(
            f"--compile does not work with Python {sys.version.split()[0]} and torch {torch.__version__}: "
            f"{error}. Omit --compile."
        ) from None

    def forward(images: Tensor) -> Tensor:
        scores: Tensor = fast(images) if len(images) else model(images)
        return scores

    return forward


def _check_compilers(device: torch.device, environment: env.Environment) -> None:
    """Check that the programs torch's compiler runs exist: it fails only in the first step."""
    if device.type == "cpu":
        _check_program(environment, "CXX", ("clang++" if sys.platform == "darwin" else "g++",))
    elif device.type == "cuda":
        if find_spec("triton") is None:
            raise UsageError(
                "--compile needs Triton to build GPU kernels, and it is not installed. "
                "Install it (pip install triton), or omit --compile."
            )
        _check_program(environment, "CC", ("gcc", "clang"))


def _check_program(environment: env.Environment, variable: str, usual: tuple[str, ...]) -> None:
    """Check that the compiler named by `variable`, or else one of the `usual` ones, is on PATH."""
    named = environment.get(variable)
    programs = usual if named is None else (named,)
    if not any(shutil.which(program) for program in programs):
        wanted = " or ".join(usual) if named is None else f"{variable}={named!r}"
        raise UsageError(
            f"--compile runs a C++ or C compiler, and {wanted} is not found. "
            f"Install one, set {variable} to it, or omit --compile."
        )
