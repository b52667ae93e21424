"""Repeats a script of single precision in double precision, and decides whether a difference is rounding."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from samestep.hooks import declarations
from samestep.hooks.registry import attached, wrapping
from samestep.hooks.tensor_tree import leaves
from samestep.verify.causes import causes
from samestep.verify.compare import Comparison
from samestep.verify.verdict import Finding, faults_of

_OF_VALUES = ("gradient", "gradient-norm", "loss", "update", "parameters")
"""Causes that rounding can have, when it grows by more than the disturbed run shows."""
_OF_PRINTS = ("printed", "printed-text", "local-metric")
"""Causes that rounding can have, when it moves a sample across a decision: an accuracy, an early stop."""
_SINGLE = (1e-10, 1e-5)  # the machine epsilon of float32, 1.2e-7, is between; no other type's is
_SAME_IN_DOUBLE = 1e-9
"""Largest relative deviation in double precision in the disputed step, if rounding is all that there is,
which is 5e8 times as small there as in single precision."""
aten = torch.ops.aten
_FILLS = (aten.uniform_, aten.normal_, aten.exponential_, aten.log_normal_, aten.cauchy_)
"""Operations that fill a tensor with random numbers."""
_DRAWS = (aten.rand, aten.randn, aten.rand_like, aten.randn_like)
"""Operations that return random numbers."""
_WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_UNCHANGED = ("__get__", "copy_", "__setitem__", "__set__", "backward")
"""Functions that read attributes, or that write into a tensor and convert by themselves."""


def may_be_rounding(comparison: Comparison, findings: Sequence[Finding]) -> bool:
    """Return whether all faults of a run are deviations that rounding in single precision can have."""
    faults = faults_of(findings)
    least, most = _SINGLE
    is_single = least < comparison.reference.facts.epsilon < most
    return is_single and bool(faults) and all(fault.cause in (*_OF_VALUES, *_OF_PRINTS) for fault in faults)


def decided_in_double(findings: Sequence[Finding], double: Comparison | None) -> list[Finding]:
    """Return the findings of a run after its repetition in double precision; None if that failed."""
    if double is None:
        failed = "Its repetition in double precision failed, so rounding is not excluded."
        return [
            replace(finding, message=f"{finding.message} {failed}") if finding.kind == "fault" else finding
            for finding in findings
        ]
    fault = faults_of(findings)[0]
    last = double.steps if fault.step is None else fault.step
    disputed = [deviation.value for deviation in double.deviations if deviation.step <= last]
    worst = max(disputed, default=np.inf)
    if causes(double) or not worst <= _SAME_IN_DOUBLE:
        return list(findings)
    most = fault.max_relative_deviation
    by = f"deviates by {np.inf if most is None else most:.1e} in single precision"
    statement = Finding(
        cause="single-precision",
        message=f"a number that is printed {by}. In double precision the prints are the same, and the "
        f"steps deviate by at most {worst:.1e}: only the rounding of single precision makes them differ, as "
        "where a sample is close to a decision."
        if fault.cause in _OF_PRINTS
        else f"the {fault.cause} of step {fault.step} {by}, but in double precision by at most "
        f"{worst:.1e} up to there: only the rounding of single precision makes the steps differ, and it "
        "decides those of one worker as well.",
        workers=fault.workers,
        step=fault.step,
        max_relative_deviation=float(worst),
        kind="note",
    )
    return [*(finding for finding in findings if finding.kind != "fault"), statement]


@contextmanager
def in_double_precision() -> Iterator[None]:
    """Create the script's tensors in double precision, and convert those that come from elsewhere."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with (
            _SingleDraws(),  # type: ignore[no-untyped-call]
            _Widening() as widening,
            attached(declarations.FROM_NUMPY, wrapping(_from_numpy)),
            attached(declarations.BACKWARD_ENGINE, wrapping(partial(_run_in, widening))),
        ):
            yield
    finally:
        torch.set_default_dtype(usual)


class _Widening(TorchFunctionMode):
    """A mode in which names of single precision mean double precision."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _UNCHANGED:
            return func(*args, **kwargs)
        dtypes = {tensor.dtype for _, tensor in leaves((args, kwargs))}
        change = _widened if torch.float64 in dtypes else _renamed
        args, kwargs = _mapped(args, change), {name: _mapped(value, change) for name, value in kwargs.items()}
        result = (Tensor.double if func is Tensor.float else func)(*args, **kwargs)
        return result if dtypes else _mapped(result, _widened)


class _SingleDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that draws the random numbers of single precision in place of those of double precision.

    Those are others: with other initial weights and data the repetition is another training, where numbers
    with few digits, such as accuracies, can be equal by chance.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - `_Widening` would rename what autograd asks for
            return self._run(func, args, kwargs or {}, is_plain=not types)

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_plain: bool) -> Any:
        first = args[0].dtype if args and isinstance(args[0], Tensor) else torch.get_default_dtype()
        if not is_plain or (kwargs.get("dtype") or first) != torch.float64:
            return func(*args, **kwargs)
        if func.overloadpacket in _FILLS:
            single = torch.empty_like(args[0], dtype=torch.float32)
            return args[0].copy_(func(single, *args[1:], **kwargs))
        if func.overloadpacket in _DRAWS or func is aten.normal.float_float:
            return func(*args, **{**kwargs, "dtype": torch.float32}).double()
        return func(*args, **kwargs)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return an argument with its parts changed; lists that have no such parts stay the same objects."""
    if isinstance(value, list) or type(value) is tuple:
        parts = [_mapped(part, change) for part in value]
        is_same = all(new is part for new, part in zip(parts, value, strict=True))
        return value if is_same else type(value)(parts)
    return change(value)


def _renamed(value: Any) -> Any:
    """Return double precision for the name of single precision."""
    return _WIDER.get(value, value) if isinstance(value, torch.dtype) else value


def _widened(value: Any) -> Any:
    """Return a tensor of single precision in double precision, and a renamed dtype."""
    if type(value) is Tensor and value.dtype in _WIDER:
        return value.to(_WIDER[value.dtype])
    return _renamed(value)


def _run_in(widening: _Widening, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a backward in the mode, which torch has left for it: a checkpoint computes its forward again."""
    with widening:
        return original(*args, **kwargs)


def _from_numpy(original: Callable[[Any], Tensor], array: Any) -> Tensor:
    tensor: Tensor = _widened(original(array))
    return tensor
