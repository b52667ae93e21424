"""Backward in tests runs in a thread with the state that torch copies to that of a GPU, and no other."""

import threading
from contextvars import ContextVar

import torch

from support.autograd_thread import autograd_in_another_thread

_variable: ContextVar[str] = ContextVar("variable", default="unset")


def test_a_backward_runs_in_another_thread_with_the_state_that_torch_copies():
    weight, found = torch.ones(3, requires_grad=True), []
    token = _variable.set("set")
    try:
        with autograd_in_another_thread(), torch.autocast("cpu", torch.bfloat16):
            weight.register_hook(
                lambda _: found.append(
                    (threading.current_thread().name, _variable.get(), torch.is_autocast_enabled("cpu"))
                )
            )
            weight.sum().backward()
            (gradient,) = torch.autograd.grad(weight.square().sum(), weight)
    finally:
        _variable.reset(token)

    assert found == [("autograd", "unset", True)] * 2
    assert gradient.tolist() == [2.0] * 3
