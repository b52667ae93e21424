"""The model as it computes: compiled, or with channels innermost. What is saved stays the model itself."""

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
    """Return `model`, the weights of its convolutions channels-last where `settings` say so."""
    if settings.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def compiled(model: nn.Module, settings: Settings) -> Callable[[Tensor], Tensor]:
    """Return what computes the scores of `model` in training: itself, or its compiled form.

    They share weights and buffers. Save and evaluate `model`: the compiled form's keys begin with
    ``_orig_mod.``. The compiler runs at the first call, and again for a last batch of another size; for exact
    bits at each new size, because code for any size computes other bits than code for one. A share without
    samples goes through `model`: torch's compiler fails on it (seen in torch 2.13).

    Raises:
        UsageError: nothing can be compiled here.
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
            f"{error}. Leave --compile out."
        ) from None

    def forward(images: Tensor) -> Tensor:
        scores: Tensor = fast(images) if len(images) else model(images)
        return scores

    return forward


def _check_compilers(device: torch.device, environment: env.Environment) -> None:
    """Look for what torch's compiler itself runs: it says so only in the middle of the first step."""
    if device.type == "cpu":
        _check_program(environment, "CXX", ("clang++" if sys.platform == "darwin" else "g++",))
    elif device.type == "cuda":
        if find_spec("triton") is None:
            raise UsageError(
                "--compile needs Triton to make GPU kernels, and it is not installed. "
                "Install it (pip install triton), or leave --compile out."
            )
        _check_program(environment, "CC", ("gcc", "clang"))


def _check_program(environment: env.Environment, variable: str, usual: tuple[str, ...]) -> None:
    """Check that the compiler a variable names, or else one of the usual ones, can be run."""
    named = environment.get(variable)
    programs = usual if named is None else (named,)
    if not any(shutil.which(program) for program in programs):
        wanted = " or ".join(usual) if named is None else f"{variable}={named!r}"
        raise UsageError(
            f"--compile runs a C++ or C compiler, and {wanted} is not found. "
            f"Install one, set {variable} to it, or leave --compile out."
        )
