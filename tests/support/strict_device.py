"""A context under which the CPU is as strict as a CUDA device.

Where CUDA's kernels assert, the CPU's raise an error that a program can catch. Where CUDA's kernels want a
layout or an operand, the CPU's do without. So faults that end a process on a GPU pass the tests of a CPU::

    an index that is out of range          the device is lost: each later operation fails, too
    a probability outside of 0 to 1        the same
    a hidden state that is not contiguous  the error of cuDNN
    batch norm's backward without saved    the error of CUDA's kernel
      statistics
    backward                               runs in another thread, where no context variables are set
    a value that samestep reads            is counted, since the host waits for a device there

The device stays lost, whoever catches the error: `StrictDevice.lost` has the operation, and a test asserts
that it is empty.
"""

import re
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from samestep.autopilot.equivalence.positions import CheckedPositions
from support.autograd_thread import autograd_in_another_thread
from support.host_reads import HostReads

aten = torch.ops.aten
_DeviceError = getattr(torch, "AcceleratorError", RuntimeError)  # torch has it since 2.8
_LOST = "CUDA error: device-side assert triggered"
_ASSERTED = re.compile(
    r"out of (range|bounds|DATA bounds)|valid range|invalid max index|between 0 and 1|p_in >= 0|Poisson rate"
    r"|repeats can not be negative|multinomial distribution|Class values must be|number of ones in mask"
    r"|single nonzero value"
)
"""Errors of the CPU's kernels about values that CUDA's kernels assert."""
_OF_SIZES = re.compile(
    r"Dimension out of range|out of bounds for tensor of dimension|out of range for tensor of size"
)
"""Errors of operations about their sizes, which torch compares on the host for each device."""
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
SPLIT_CALL = "autopilot/helpers/main_calls.py", "_by_plan"
"""The function that computes a split call after its check."""
_OWN = "samestep.tests.strict_device"
"""The module of the modes: the autopilot splits no calls under a mode that is not samestep's."""
_NORM_BACKWARD = (aten.native_batch_norm_backward, aten.cudnn_batch_norm_backward)


class StrictDevice:
    """The strict device of one thread.

    Attributes:
        lost: the operation that has asserted; empty before.
        reads: the places where samestep has read values in split calls after their checks; see `HostReads`.
    """

    def __init__(self) -> None:
        self.lost = ""
        self.reads: list[str] = []

    @contextmanager
    def __call__(self):
        """Run a block on the strict device."""
        with ExitStack() as stack:
            stack.enter_context(autograd_in_another_thread())
            self.reads = stack.enter_context(HostReads(within=SPLIT_CALL)).found
            stack.enter_context(_Functions(self))
            stack.enter_context(_Kernels(self))
            yield self

    @contextmanager
    def losing(self, operation: Any):
        """Lose the device if an operation raises what CUDA's kernels assert."""
        try:
            yield
        except (IndexError, RuntimeError) as error:
            text = str(error)
            is_of_sizes = _OF_SIZES.search(text) and operation is not aten.embedding_renorm_.default
            if self.lost or not _ASSERTED.search(text) or is_of_sizes:
                raise
            self.lost = f"{operation}: {text.splitlines()[0]}"
            raise _DeviceError(_LOST) from None


class _Kernels(TorchDispatchMode):
    """Runs operations; an error that is an assertion of CUDA's kernels loses the device."""

    __module__ = _OWN

    def __init__(self, device: StrictDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._device.lost:
            raise _DeviceError(f"{_LOST} (by {self._device.lost})")
        if func.overloadpacket is aten._local_scalar_dense and not isinstance(args[0], Tensor):
            return args[0]  # torch passes a number that was made a tensor as a number
        if func.overloadpacket in _NORM_BACKWARD and (args[5] is None or args[6] is None):
            raise RuntimeError(
                "save_mean->defined() INTERNAL ASSERT FAILED: save_mean should always be defined"
            )
        with self._device.losing(func):
            return func(*args, **(kwargs or {}))


class _Functions(TorchFunctionMode):
    """Refuses hidden states as cuDNN does, and checks functions that compare values before their kernels."""

    __module__ = _OWN

    def __init__(self, device: StrictDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _RECURRENT:
            has_batch_sizes = isinstance(args[1], Tensor) and not args[1].is_floating_point()
            states = args[2 if has_batch_sizes else 1]
            for state in (states,) if isinstance(states, Tensor) else states:
                if not state.is_contiguous():
                    raise RuntimeError("rnn: hx is not contiguous")
        # On CUDA it is a scatter of unchecked classes, which `CheckedPositions` would check.
        asserts = name == "one_hot" and not _are_positions_checked()
        with self._device.losing(name) if asserts else nullcontext():
            return func(*args, **(kwargs or {}))


def _are_positions_checked() -> bool:
    return any(isinstance(mode, CheckedPositions) for mode in _get_current_dispatch_mode_stack())
