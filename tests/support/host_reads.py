"""Counts where samestep makes the host wait for the device of a script, on a CPU, which never waits.

A read is counted if the nearest Python frame outside of torch belongs to samestep. On a device some tensors
are on the host nevertheless; they are recognized by how they were created::

    torch.empty(..., device="cpu")      samestep's code names the CPU by this text, and a device by an object
    loss / 2                            torch's tensor of a Python number

and by the code that reads them, see `ON_HOST`.
"""

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from samestep.autopilot.split.loss_reduction import is_python_number
from samestep.base.folders import PACKAGE

READS = {
    *("item", "tolist", "numpy", "cpu", "equal", "allclose", "nonzero", "is_nonzero", "masked_select"),
    *("__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__", "__array__", "unique"),
}
"""Functions of tensors that wait for a device."""
INDEXED = {"__getitem__", "__setitem__", "index_put_"}
"""Functions that wait for a device if an index is a boolean tensor."""
ON_HOST = {
    "hooks/random_draws.py": "the states of generators are on the host, also those of a device",
    "autopilot/split/guards.py": "reads the few numbers of a tensor that a forward can branch on",
    "autopilot/helpers/messages.py": "copies tensors of the CPU only, into memory that helpers see",
    "autopilot/helpers/mirrors.py": "compares tensors of the CPU, and small ones of the last call",
    "parallel/gradients/batch_norm.py": "an error that a device finds is read with the call (`raise_now`)",
    "ranks/collectives/": "the back ends of CPUs carry tensors of the host",
    "ranks/world/": "the back ends of CPUs carry tensors of the host",
    "autopilot/state/sample_reads.py": "the forward of the script reads, through a mode",
}
CHECKS = {
    "autopilot/equivalence/": "equivalence checks and sample checks",
    "autopilot/split/short_calls.py": "calls that are timed",
    "parallel/gradients/agreement.py": "the comparison of weights, at intervals",
}
"""Code that may wait, and lets code that it calls wait, by its path in the package, with the reason."""
_TORCH = str(Path(torch.__file__).parent)


class HostReads:
    """A context that counts the reads of device tensors by samestep's code in the calling thread.

    It must be active before samestep creates tensors of the host, so it is around a whole script.

    Args:
        within: the file and the name of a function of samestep, below which reads count; None for all reads,
            also after the engine within `Tensor.backward`, where the mode makes torch call hooks twice.

    Attributes:
        found: the file and the line of each read, and of each collective of Python objects, so far.
    """

    def __init__(self, within=None):
        self._within = within
        self.found = []
        self._stack = ExitStack()

    def __enter__(self):
        for name in ("all_gather_object", "broadcast_object_list"):
            self._stack.enter_context(mock.patch.object(dist, name, self._counted(getattr(dist, name))))
        reads = self._stack.enter_context(_Reads(self.count, follows_backward=self._within is None))
        engine = torch.autograd._engine_run_backward

        def run_backward(*args, **kwargs):
            with reads:  # torch's functions leave the mode before they call the engine
                return engine(*args, **kwargs)

        self._stack.enter_context(mock.patch.object(torch.autograd, "_engine_run_backward", run_backward))
        return self

    def __exit__(self, *error):
        self._stack.close()

    def count(self, passed=()):
        """Count a read if the innermost frame, beyond the code that is `passed`, belongs to samestep.

        Reads by `ON_HOST` and below `CHECKS` do not count.
        """
        frames = [one for one in _frames() if not one[0].startswith(passed)] if passed else list(_frames())
        own, line, _ = frames[0]
        is_check = any(file.startswith(tuple(CHECKS)) for file, *_ in frames)
        is_outside = self._within is not None and self._within not in [
            (file, name) for file, _, name in frames
        ]
        if not (is_outside or own.startswith((os.sep, "<", *ON_HOST)) or is_check):
            self.found.append(f"{own}:{line}")

    def _counted(self, original):
        def collective(*args, **kwargs):
            self.count(passed="ranks/")
            return original(*args, **kwargs)

        return collective


class _Reads(TorchFunctionMode):
    """A mode that calls `count` at each read of a tensor that is not on the host."""

    # A mode of the script would get slices, so calls would stay unsplit under it.
    __module__ = "samestep.host_reads"

    def __init__(self, count, *, follows_backward):
        super().__init__()
        self._count, self._follows_backward = count, follows_backward
        self._on_host = WeakTensorKeyDictionary()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if func is torch.Tensor.backward and self._follows_backward:  # within `func` the mode is not active
            with self:
                return _backward(*args, **kwargs)
        result = func(*args, **kwargs)
        given = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor) and not is_lazy(one)]
        if self._waits(name, args, kwargs, given):
            self._count()
        device = kwargs.get("device")
        if (given and all(map(self._is_on_host, given))) or (isinstance(device, str) and device == "cpu"):
            for one in result if isinstance(result, tuple | list) else [result]:
                if isinstance(one, Tensor):
                    self._on_host[one] = True
        return result

    def _is_on_host(self, tensor):
        return tensor in self._on_host or is_python_number(tensor)

    def _waits(self, name, args, kwargs, given):
        """Return whether a function would make the host wait for a device."""
        far = [one for one in given if not self._is_on_host(one)]
        if name in READS:
            return bool(far)
        if name in INDEXED:
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            return any(isinstance(one, Tensor) and one.dtype == torch.bool for one in indices) and bool(far)
        if name in ("tensor", "as_tensor"):  # copied from the host, and waits for the copy
            return "device" in kwargs and not isinstance(kwargs["device"], str)
        if name == "where":  # copies a number from the host, and waits for the copy
            return any(isinstance(one, int | float) for one in args)
        if name == "to":
            return "cpu" in (*args[1:], kwargs.get("device")) and bool(far) and not kwargs.get("non_blocking")
        return name == "copy_" and 0 < len(far) < len(given) and not kwargs.get("non_blocking")


def _backward(tensor, gradient=None, retain_graph=None, create_graph=False, inputs=None):
    """Call backward as `Tensor.backward` does, which would call the mode again."""
    torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)


def _frames():
    """Yield file, line and function of each frame of samestep or user code, innermost first.

    A file of samestep has its path in the package, and another one its absolute path. A layer of torch counts
    as user code: samestep only calls it in the place of the script.
    """
    frame = sys._getframe(1)
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        is_of_torch = file.startswith(_TORCH) and not file.startswith(f"{_TORCH}/nn/")
        is_mode = name == "__torch_function__" and not file.startswith(f"{PACKAGE}/")  # another one of a test
        if file != __file__ and not is_of_torch and not is_mode:
            yield file.removeprefix(f"{PACKAGE}/"), frame.f_lineno, name
        frame = frame.f_back
