"""Ranks that a launcher has started help the one that runs the script, by messages over connections."""

import os
import signal
from contextlib import nullcontext
from unittest.mock import patch

import pytest
import torch

from gallery.manifest import SCRIPTS
from samestep.autopilot import once_script
from samestep.autopilot.helpers import joined_team
from samestep.autopilot.helpers.joined_team import Form
from samestep.autopilot.script.options import Options
from samestep.launch.local.hosting import Ending
from samestep.ranks.collectives import peer_connections
from support.script_runner import difference, run_launched_script, run_script
from support.tiers import mostly_long, stem
from support.written_files import files, same_contents

NOTHING_TO_SPLIT = {"forward_by_name.py"}
SHORT = ("batch_memories", "dropout_zoo", "gan", "sparse_embeddings", "weights_beside")
"""Scripts with buffers that grow, draws, two models, sparse gradients, and weights that no module has."""


def with_rows_of_others_as_nan(world, *ran):
    """Run a script on ranks that read of inputs and gradients their own rows only: the others are NaN."""
    empty = Form.empty

    def filled(form, device):
        tensor = empty(form, device)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    Form.empty = filled
    try:
        return run_launched_script(world, *ran)
    finally:
        Form.empty = empty


def compare(processes, script, folder, size, may_share_memory):
    options, theirs, own = (
        Options(device=script.device, short_calls="split"),
        folder / "alone",
        folder / "team",
    )
    theirs.mkdir()
    own.mkdir()
    ran = script.path, script.arguments, theirs, script.runs, options
    ((serial, _, trace),) = processes.run(run_script, 1, *ran)
    assert not trace, trace
    ran = script.path, script.arguments, own, script.runs, options, may_share_memory
    ((printed, account, trace), *_) = processes.run(with_rows_of_others_as_nan, size, *ran)
    assert not trace, trace
    if script.deterministic:
        assert difference(serial, printed, leave_out=script.timing_patterns) is None
        for name in script.files:
            assert same_contents(theirs / name, own / name), name
    assert files(own) == sorted(script.files)
    split = [line for line in account if line.endswith((" call split", " calls split"))]
    assert bool(split) == (script.name not in NOTHING_TO_SPLIT), account


@pytest.mark.parametrize("script", mostly_long(SCRIPTS, SHORT, stem))
def test_ranks_without_common_memory_help(processes, script, tmp_path):
    """Only this finds a tensor, or a row, that a message to helpers without memory of rank 0 leaves out."""
    compare(processes, script, tmp_path, 2, may_share_memory=False)


@pytest.mark.parametrize("script", mostly_long(SCRIPTS, ("dropout_zoo",), stem))
def test_three_ranks_without_common_memory_help(processes, script, tmp_path):
    """Only this finds rows of another helper, and large tensors that a broadcast carries."""
    compare(processes, script, tmp_path, 3, may_share_memory=False)


@pytest.mark.parametrize("script", mostly_long(SCRIPTS, ("gan",), stem))
def test_ranks_with_common_memory_help(processes, script, tmp_path):
    """Only this finds that ranks of a launcher miss the memory of rank 0, or take that of another process."""
    compare(processes, script, tmp_path, 2, may_share_memory=True)


def launched_without_addresses(world):
    """Run a script on ranks of several hosts whose names lead to no address; return what it computed."""
    computed = []

    def run():
        computed.append(torch.nn.Linear(2, 1)(torch.ones(8, 2)).shape)
        return Ending()

    with (
        patch.object(once_script, "join_team", lambda **_: nullcontext(world)),
        patch.object(joined_team, "_new_memory", lambda *_, **__: None),
        patch.object(peer_connections, "_address", lambda: ""),
    ):
        assert once_script.run_launched(run).exit_code == 0
    return computed


def signalled(world):
    """Split a call after the other rank got the signals of a scheduler; return how many were split."""
    split = []

    def run():
        os.kill(other, signal.SIGUSR1)
        os.kill(other, signal.SIGTERM)
        torch.nn.Linear(2, 1)(torch.ones(8, 2))
        return Ending()

    def lines(account):
        split.extend(account.split.values())
        return []

    _, other = world.all_gather_objects(os.getpid())
    with (
        patch.object(once_script, "join_team", lambda **_: nullcontext(world)),
        patch.object(once_script.Account, "lines", lines),
    ):
        once_script.run_launched(run, options=Options(short_calls="split"))
    return split


def test_signals_to_all_ranks_are_for_the_script_alone(processes):
    """Only this finds that the warning of a scheduler, which a script handles, ends its helpers."""
    assert processes.run(signalled, 2) == [[1], []]


def test_ranks_that_cannot_be_connected_leave_the_script_to_rank_0(processes):
    """Only this finds a traceback in place of the script."""
    assert processes.run(launched_without_addresses, 2) == [[(8, 1)], []]


def test_a_form_has_the_memory_order_of_its_tensor():
    """Only this finds a channels-last input that arrives as a contiguous one, which rounds otherwise."""
    tensor = torch.zeros(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    form = Form(tensor.dtype, tuple(tensor.shape), tensor.stride(), "cpu", requires_grad=False)
    assert form.empty(torch.device("cpu")).stride() == tensor.stride()
