"""The loss of helpers, and of what starts them, costs time and nothing else."""

import errno
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from samestep.autopilot.helpers import shared_storage
from samestep.autopilot.helpers.helper_processes import _kill
from samestep.autopilot.helpers.messages import _MessageFile
from samestep.autopilot.helpers.slices import RankSlices
from samestep.autopilot.once_script import script_with_helpers
from samestep.autopilot.split.bypassed_modules import note_unused_workers
from samestep.base.polling import holds_within
from samestep.base.process_identity import has_ended
from support.helper_processes import helpers_of_this_process, starters_of_this_process
from support.script_runner import ALL_SPLIT
from support.split_check_models import step

STEPS = 4


def made():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(14, 6).double()


def undisturbed(steps=STEPS):
    model, optimizer, x = made()
    return [step(model, optimizer, x) for _ in range(steps)]


def killed(process):
    """Kill a process, and wait for its end."""
    os.kill(process, signal.SIGKILL)
    assert holds_within(lambda: has_ended(process), 10)


def without_memory(*_):
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def without_a_starter(_, how):
    model, optimizer, x = made()
    with script_with_helpers(3, forks=True, timeout_s=1) as account, pytest.MonkeyPatch.context() as patch:
        found = [step(model, optimizer, x)]
        helpers = helpers_of_this_process()
        if how == "no memory":
            patch.setattr(shared_storage.os, "memfd_create", without_memory)
        else:
            os.kill(starters_of_this_process()[0], how)
        killed(helpers[0])
        found += [step(model, optimizer, x) for _ in range(STEPS - 1)]
        left = [one for one in helpers if not has_ended(one)]
    return found, account.lines(), left


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, "no memory"])
def test_helpers_that_cannot_be_started_again_leave_the_run_to_the_main_rank(processes, how):
    """A starter that was stopped made the run wait without an end."""
    ((found, account, left),) = processes.run(without_a_starter, 1, how)
    assert found == pytest.approx(undisturbed(), rel=1e-9)
    assert left == []
    assert account[0].endswith(": 1 call split"), account


def no_helpers_at_all(_):
    model, optimizer, x = made()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_storage.os, "memfd_create", without_memory)
        with script_with_helpers(2, forks=True) as account:
            found = [step(model, optimizer, x) for _ in range(STEPS)]
            note_unused_workers(account)
    return found, account.lines(), starters_of_this_process()


def test_a_run_begins_without_helpers_if_there_is_no_memory_for_them(processes):
    """The lack of memory ended the run before its script began; later, the script was named as the reason."""
    ((found, account, left),) = processes.run(no_helpers_at_all, 1)
    assert (found, account, left) == (undisturbed(), [], [])


def lost_between_calls(_):
    model, optimizer, x = made()
    counts = []
    gc.collect()  # files of an earlier test, which this process has run
    with script_with_helpers(3, forks=True) as account:
        found = []
        for _ in range(STEPS):
            found.append(step(model, optimizer, x))
            counts.append(len([*Path("/proc/self/fd").iterdir()]))
            killed(helpers_of_this_process()[1])
    return found, account.lines(), counts


def test_a_helper_lost_between_calls_costs_no_slice_and_no_descriptor(processes):
    """Each restart left the file of messages open; the call after the loss was computed by one rank."""
    ((found, account, counts),) = processes.run(lost_between_calls, 1)
    assert found == pytest.approx(undisturbed(), rel=1e-9)
    assert not [line for line in account if "unsplit" in line], account
    assert len(set(counts)) == 1


def signals_of_all(_):
    model, optimizer, x = made()
    with script_with_helpers(2, forks=True):
        found = [step(model, optimizer, x)]
        before = helpers_of_this_process()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1):
            for process in [*before, *starters_of_this_process()]:
                os.kill(process, number)
        found += [step(model, optimizer, x) for _ in range(STEPS - 1)]
        return found, before, helpers_of_this_process()


def test_signals_that_a_scheduler_sends_to_all_processes_are_for_the_script_alone(processes):
    """A script that handles SIGTERM or SIGUSR1 lost all of its helpers to it."""
    ((found, before, after),) = processes.run(signals_of_all, 1)
    assert found == pytest.approx(undisturbed(), rel=1e-9)
    assert before == after


class Aborts(nn.Linear):
    """A layer whose calls end all processes but the one that has made it."""

    def __init__(self):
        super().__init__(6, 3)
        self.main = os.getpid()

    def forward(self, x):
        if os.getpid() != self.main:
            os.abort()
        return super().forward(x)


def calls_that_end_helpers(_):
    helpers = set()
    with script_with_helpers(2, forks=True) as account:
        model = Aborts()
        for _ in range(6):
            model(torch.ones(8, 6))
            helpers |= {*helpers_of_this_process()}
    return len(helpers), account.lines()


def test_calls_that_end_their_helpers_stay_unsplit(processes):
    """Each call started the helpers again, without an end."""
    ((count, account),) = processes.run(calls_that_end_helpers, 1)
    assert not [line for line in account if line.endswith("split")], account
    assert count == 3


def modified_before_its_backward(_):
    torch.manual_seed(3)
    layer, x = nn.Linear(6, 3).double(), torch.randn(14, 6).double()
    with script_with_helpers(2, forks=True):
        for number in range(STEPS):
            loss = layer(x).square().sum()
            with torch.no_grad():
                layer.weight.mul_(0.9)
            if number == STEPS - 1:
                killed(helpers_of_this_process()[0])
            loss.backward()
    return layer.weight.grad.sum().item()


def test_weights_that_change_before_a_backward_do_not_make_a_loss_an_error(processes):
    """The lost part of the graph could not be computed again from the weights of the call."""
    torch.manual_seed(3)
    layer, x = nn.Linear(6, 3).double(), torch.randn(14, 6).double()
    for _ in range(STEPS):
        loss = layer(x).square().sum()
        with torch.no_grad():
            layer.weight.mul_(0.9)
        loss.backward()
    assert processes.run(modified_before_its_backward, 1) == [pytest.approx(layer.weight.grad.sum().item())]


def lost_in_inference(_):
    model, optimizer, x = made()
    with script_with_helpers(2, ALL_SPLIT, forks=True) as account:
        for _ in range(2):
            step(model, optimizer, x)
            killed(helpers_of_this_process()[0])
            with torch.inference_mode():
                model(x)
        return step(model, optimizer, x), account.lines()


def test_helpers_started_again_in_inference_mode_serve_the_training(processes):
    """The memory of their messages was of that mode, and the next step could not write to it."""
    ((found, account),) = processes.run(lost_in_inference, 1)
    assert found == pytest.approx(undisturbed(3)[-1], rel=1e-9)
    assert not [line for line in account if "unsplit" in line], account


class GoesOn(nn.Module):
    """Goes on from the state of its last call."""

    def __init__(self):
        super().__init__()
        self.body, self.state = nn.Linear(6, 5).double(), None

    def forward(self, x):
        self.state = torch.tanh(self.body(x) + (0.0 if self.state is None else self.state))
        return self.state.sum(1)


def interrupted(_, *, at=None):
    """Return losses of calls, which are repeated where Ctrl-C ends them, as if it came before them."""
    torch.manual_seed(3)
    model, found, original = GoesOn(), [], RankSlices._own_outputs

    def ending(*args):
        patch.setattr(RankSlices, "_own_outputs", original)
        original(*args)
        raise KeyboardInterrupt

    for number in range(STEPS):
        x = torch.randn(7, 6).double()
        with pytest.MonkeyPatch.context() as patch:
            if number == at:
                patch.setattr(RankSlices, "_own_outputs", ending)
            try:
                loss = model(x).square().sum()
            except KeyboardInterrupt:
                loss = model(x).square().sum()
        loss.backward(retain_graph=True)
        found += [loss.item(), model.body.weight.grad.norm().item()]
    return found


def with_an_event(_, work):
    """Return results of `work`, whose last call but one an event disturbs, with helpers; and the report."""
    with script_with_helpers(3, ALL_SPLIT, forks=True) as account:
        return work(_, at=STEPS - 2), account.lines()


def test_an_interrupted_call_leaves_its_module_as_it_was(processes):
    """It had a slice of its state, with which the next call failed, or which the script saved."""
    ((found, account),) = processes.run(with_an_event, 1, interrupted)
    assert found == pytest.approx(interrupted(None), rel=1e-9)
    assert not [line for line in account if "unsplit" in line], account


class Reenters(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 5).double(), nn.Linear(5, 3).double()

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.last, self.first(x).tanh(), use_reentrant=True)


def lost_in_a_reentrant_backward(_, *, at=None):
    torch.manual_seed(3)
    model, found = Reenters(), []
    for number in range(STEPS):
        loss = model(torch.randn(14, 6).double()).square().sum()
        if number == at:
            killed(helpers_of_this_process()[1])
        model.zero_grad()
        loss.backward()
        found += [loss.item(), *(weight.grad.norm().item() for weight in model.parameters())]
    return found


def test_a_reentrant_checkpoint_is_computed_again_if_a_helper_is_lost(processes):
    """Torch refuses `torch.autograd.grad` for it, which ended the script."""
    ((found, account),) = processes.run(with_an_event, 1, lost_in_a_reentrant_backward)
    assert found == pytest.approx(lost_in_a_reentrant_backward(None), rel=1e-9)
    assert not [line for line in account if "unsplit" in line], account


def ends_beside_a_forked_process(_):
    model, optimizer, x = made()
    reads, writes = os.pipe()
    with script_with_helpers(2, forks=True):
        found = [step(model, optimizer, x)]
        helpers = helpers_of_this_process()
        child = os.fork()
        if not child:
            os.close(writes)
            os.read(reads, 1)
            os._exit(0)
    os.close(writes)
    os.waitpid(child, 0)
    return found, [one for one in helpers if not has_ended(one)]


def test_helpers_end_before_a_process_that_the_script_has_forked(processes):
    """The child has the line to the starter open, which waited for its end, and the main process with it."""
    assert processes.run(ends_beside_a_forked_process, 1) == [(undisturbed(1), [])]


def test_a_process_that_has_the_id_of_an_ended_helper_is_not_killed():
    """A helper may end unnoticed, and the system uses its id again."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        _kill(other.pid, "1")
        other.communicate(b"\n")
    assert other.returncode == 0


def test_a_message_that_is_too_large_for_the_memory_leaves_the_file_in_use(monkeypatch):
    """The file was closed before the larger one was there: its descriptor then was another file's."""
    messages = _MessageFile()
    messages.put("before")
    with monkeypatch.context() as patch:
        patch.setattr(shared_storage.os, "memfd_create", without_memory)
        with pytest.raises(OSError, match="memory"):
            messages.put(torch.zeros(1 << 20))
    with messages.file.opened() as memory:
        begin, end, _ = messages.put("after")
        assert b"after" in memory[begin:end]
    messages.file.close()
