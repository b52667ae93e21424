"""Backward in a thread of torch, as on GPUs: activation checkpoints, batch norm and dropout there."""

import threading
from contextvars import ContextVar

import torch

from gallery.manifest import SCRIPTS
from support.autograd_thread import autograd_in_another_thread, run_script_so
from support.script_runner import difference, run_script

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


def test_checkpoints_batch_norm_and_dropout_give_the_serial_output_there(processes, tmp_path):
    script = next(one for one in SCRIPTS if one.name == "checkpointed.py")
    printed = {}
    for size, run in ((1, run_script), (2, run_script_so)):
        folder = tmp_path / str(size)
        folder.mkdir()
        ranks = processes.run(run, size, script.path, script.arguments, folder)
        assert not any(trace for *_, trace in ranks), ranks
        printed[size] = ranks[0][0]

    assert any(line.endswith("calls split") for line in ranks[0][1])
    patterns = script.timing_patterns + script.slice_patterns
    assert difference(printed[1], printed[2], leave_out=patterns) is None
