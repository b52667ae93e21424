"""Backward in tests runs in a thread with the state that torch copies to that of a GPU, and no other."""

import logging
import threading
from contextvars import ContextVar

import pytest
import torch

from samestep.autopilot.equivalence.effects import WritesFileError, changing_no_files, quiet, watch_effects
from samestep.autopilot.split.gradients import TrainsError, detected_training, training_nothing
from samestep.autopilot.split.slice_context import before_collective, failing_together
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


def _in_a_hook(call):
    """Call a function in a gradient hook of a backward in another thread."""
    weight = torch.ones(1, requires_grad=True)
    value = weight * 2
    value.register_hook(lambda _: call())
    with autograd_in_another_thread():
        torch.autograd.grad(value, weight)


def test_a_backward_in_a_check_prints_and_logs_nothing(capsys, caplog):
    with quiet() as printed:
        _in_a_hook(lambda: print("in the backward"))
        has_printed, printed.any = printed.any, False
        _in_a_hook(lambda: logging.getLogger("model").warning("in the backward"))
    assert has_printed
    assert printed.any
    assert capsys.readouterr() == ("", "")
    assert not caplog.records


def test_a_backward_in_a_check_changes_no_files(tmp_path):
    watch_effects()
    path = tmp_path / "log"
    with changing_no_files(), pytest.raises(WritesFileError):
        _in_a_hook(lambda: path.write_text("a line"))
    assert not path.exists()


def test_a_backward_in_a_check_steps_no_optimizer():
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.1)
    with detected_training(), training_nothing(), pytest.raises(TrainsError):
        _in_a_hook(optimizer.step)


def test_a_backward_within_a_forward_agrees_on_collectives_with_the_other_ranks():
    asked = []

    def agree(*values):
        asked.append(values)
        return list(values)

    with failing_together(agree, lambda _: True):
        _in_a_hook(before_collective)
    assert asked == [(True, False, True), (True, True, False)]
