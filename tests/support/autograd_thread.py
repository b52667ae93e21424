"""Runs each backward in another thread, as torch does for tensors of a GPU.

torch gives its thread the caller's grad mode, autocast, dispatch and function modes, and stashed objects; see
`at::ThreadLocalState`. A context variable, a `threading.local` and the identity of the thread are other ones
there, so code that backward calls (hooks, `Function.backward`, a checkpoint's recomputed forward) cannot rely
on them. A backward within that backward runs in the same thread.
"""

import threading
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from torch import overrides
from torch.autograd import graph
from torch.utils import _python_dispatch

from samestep.hooks import thread_values


class _AutogradThread(threading.Thread):
    """Runs one call of autograd's engine, and keeps its result or its error."""

    def __init__(self, call):
        super().__init__(name="autograd")
        self.result = self.error = None
        self._call = call
        self._grad = torch.is_grad_enabled()
        self._cast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        self._modes = [
            (_python_dispatch._push_mode, _python_dispatch._pop_mode, one)
            for one in _python_dispatch._get_current_dispatch_mode_stack()
        ] + [
            (overrides._push_mode, overrides._pop_mode, one)
            for one in overrides._get_current_function_mode_stack()
        ]
        self._slot = thread_values.own_slot()

    def run(self):
        """Run the call with the state of the thread that has created this one."""
        try:
            with (
                ExitStack() as stack,
                torch.set_grad_enabled(self._grad),
                torch.autocast("cpu", self._cast[1], enabled=self._cast[0]),
            ):
                if self._slot is not None:
                    thread_values.stash(self._slot)
                for push, pop, mode in self._modes:
                    push(mode)
                    stack.callback(pop)
                self.result = self._call()
        except BaseException as error:
            self.error = error


@contextmanager
def autograd_in_another_thread():
    """Run each backward of the block in another thread."""
    engine = graph._engine_run_backward

    def run_backward(*args, **kwargs):
        is_nested = isinstance(threading.current_thread(), _AutogradThread)
        if is_nested or torch._C._functorch.peek_interpreter_stack() is not None:  # transforms are not copied
            return engine(*args, **kwargs)
        thread = _AutogradThread(lambda: engine(*args, **kwargs))
        thread.start()
        thread.join()
        if thread.error is not None:
            raise thread.error
        return thread.result

    with (
        mock.patch.object(graph, "_engine_run_backward", run_backward),
        mock.patch.object(torch.autograd, "_engine_run_backward", run_backward),
    ):
        yield
