"""Scripts that use weights without calling a module print what `python` prints; the report has the reason."""

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from textwrap import dedent

import pytest

from samestep.autopilot.once_script import run_once
from samestep.launch.job import Program
from samestep.launch.local.hosting import host
from support.script_runner import ALL_SPLIT, restored_process_state

HEAD = """\
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F
torch.manual_seed(0)

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 1))

    def forward(self, x):
        return x @ self.weight

class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.two(torch.relu(self.one(x)))

def data():
    return torch.randn(8, 3)
"""
SPLIT = "nn.Linear(3, 1)(data()).sum().backward()\n"
FORWARD = """\
model = {model}()
for _ in range(4):
    loss = model.forward(data()).square().mean()
    loss.backward()
    print(f"{{loss.item():.5f}}", f"{{next(model.parameters()).grad.sum().item():.5f}}")
"""
NEW_LEAVES = """\
model = nn.Linear(3, 1)
weights = {name: one.detach().clone().requires_grad_() for name, one in model.named_parameters()}
for _ in range(4):
    loss = functional_call(model, weights, data()).square().mean()
    found = torch.autograd.grad(loss, list(weights.values()))
    print(f"{loss.item():.5f}")
    weights = {n: (w - 0.1 * g).detach().requires_grad_() for (n, w), g in zip(weights.items(), found)}
"""
COMPUTED = """\
model = nn.Linear(3, 1)
weights = {name: one.detach().clone().requires_grad_() for name, one in model.named_parameters()}
for _ in range(4):
    loss = functional_call(model, {n: w * 2 for n, w in weights.items()}, data()).square().mean()
    loss.backward()
    print(f"{loss.item():.5f}", *(f"{w.grad.sum().item():.5f}" for w in weights.values()))
"""
TRANSFORMED = """\
model = Layers()
weights = {name: one.detach() for name, one in model.named_parameters()}
for _ in range(4):
    found, loss = grad_and_value(lambda w, x: functional_call(model, w, x).square().mean())(weights, data())
    print(f"{loss.item():.5f}")
    weights = {n: w - 0.1 * found[n] for n, w in weights.items()}
    print(vmap(model)(data()).sum().item())
"""
PLAIN = """\
weight = torch.randn(1, 3, requires_grad=True)
for _ in range(4):
    F.linear(data(), weight).square().mean().backward()
"""
CHECKPOINTED = """\
from torch.utils.checkpoint import checkpoint
model = Layers()
for use_reentrant in (False, True):
    loss = checkpoint(model, data().requires_grad_(), use_reentrant=use_reentrant).square().mean()
    loss.backward()
    print(f"{loss.item():.5f}", f"{next(model.parameters()).grad.sum().item():.5f}")
"""
ONE_BY_ONE = """\
model = Layers()
for _ in range(4):
    model(data()[:1]).square().mean().backward()
"""


def run(_, script, folder, size):
    """Run a script as a worker does; return what it prints, the report, and the traceback if it failed."""
    printed, report = io.StringIO(), io.StringIO()
    with restored_process_state(), redirect_stdout(printed), redirect_stderr(report):
        os.chdir(folder)
        program = partial(host, Program(target=str(script)), lambda _: None)
        ending = run_once(program, size=size, options=ALL_SPLIT)
    return printed.getvalue(), report.getvalue(), ending.traceback


def results(processes, tmp_path, text, size=2):
    script = tmp_path / "prog.py"
    script.write_text(HEAD + dedent(text))
    ((printed, report, trace),) = processes.run(run, 1, script, tmp_path, size)
    assert not trace, trace
    return printed, report


@pytest.mark.parametrize(
    "text",
    [SPLIT + NEW_LEAVES, SPLIT + COMPUTED, SPLIT + TRANSFORMED, SPLIT + FORWARD.format(model="Layers")],
)
def test_calls_that_bypass_a_module_have_the_results_of_one_worker(processes, tmp_path, text):
    serial, _ = results(processes, tmp_path, text, 1)
    printed, report = results(processes, tmp_path, text)
    assert printed == serial
    assert "1 call split" in report


def test_a_training_by_direct_calls_of_forward_is_named_beside_calls_that_are_split(processes, tmp_path):
    """A module that has no parts with weights makes no call by which its forward could be found."""
    text = FORWARD.format(model="Own")
    text += "for _ in range(3):\n    print(f'{model(torch.randn(6, 3)).sum().item():.6f}')\n"
    _, report = results(processes, tmp_path, text)
    assert "3 calls split" in report
    (line,) = [line for line in report.splitlines() if "model.forward(...) at prog.py:27" in line]
    assert "training" in line


def test_a_forward_that_is_called_directly_is_named_once_with_its_line(processes, tmp_path):
    _, report = results(processes, tmp_path, FORWARD.format(model="Layers"))
    (line,) = [line for line in report.splitlines() if "directly" in line]
    assert "Layers.forward is called directly at prog.py:27" in line


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (FORWARD.format(model="Own"), "model.forward(...) at prog.py:27"),
        (COMPUTED, "functional_call"),
        (PLAIN, "[1, 3]"),
        (CHECKPOINTED, "an activation checkpoint"),
        (ONE_BY_ONE, "fewer samples than workers"),
    ],
)
def test_a_script_of_which_nothing_is_split_runs_and_the_report_has_the_cause(
    processes, tmp_path, text, found
):
    serial, nothing = results(processes, tmp_path, text, 1)
    printed, report = results(processes, tmp_path, text)
    assert printed == serial
    assert not nothing
    assert found in report
    assert "()" not in report
    assert "nothing was split" in report or "no call was split" in report
