"""Exceptions of finalizers in the process of a worker are reported."""

import os
import sys
from types import SimpleNamespace

import pytest

from samestep.base.place import Place
from samestep.launch.job import Program
from samestep.launch.local import child
from samestep.launch.local.child import (
    ReportPipe,
    Start,
    entry_of,
    has_common_group,
    report_unless_interrupted,
)
from samestep.launch.local.hosting import Ending


class Finalized:
    def __init__(self, error):
        self.error = error

    def __del__(self):
        raise self.error


@pytest.mark.parametrize(("error", "is_reported"), [(KeyboardInterrupt(), False), (ValueError("x"), True)])
def test_an_error_of_a_finalizer_is_reported_unless_it_is_ctrl_c(monkeypatch, capsys, error, is_reported):
    monkeypatch.setattr(sys, "unraisablehook", report_unless_interrupted)
    Finalized(error)

    assert ("Finalized" in capsys.readouterr().err) is is_reported


C10D = "torch.distributed.distributed_c10d"


@pytest.fixture
def traces(monkeypatch):
    """Return a function that sets the state of torch.distributed in this process."""

    def leave(method, *, initialised=False, hook=sys.__excepthook__):
        state = SimpleNamespace(_default_pg_init_method=method, is_initialized=lambda: initialised)
        for name in ("samestep.ranks.world.join", "torch.distributed.rpc"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, C10D, state)
        monkeypatch.setattr(sys, "excepthook", hook)

    return leave


def test_a_worker_without_a_trace_of_a_group_has_not_joined_its_peers(traces):
    traces(None)
    assert not has_common_group(2)
    assert has_common_group(1)


@pytest.mark.parametrize(
    "trace",
    [
        {"method": "env://"},
        {"method": None, "initialised": True},
        # A group made with `store=` has no method; its excepthook outlives it.
        {"method": None, "hook": lambda *_: None},
    ],
)
def test_a_worker_with_any_trace_of_a_group_has_joined_its_peers(traces, trace):
    traces(**trace)
    assert has_common_group(2)


def test_math_kernels_are_settled_before_the_program_starts(monkeypatch):
    done = []
    monkeypatch.setattr(child, "seed_generators", lambda: None)
    monkeypatch.setattr(child, "settle_math_kernels", lambda: done.append("settled"))

    def watch(*_):
        done.append("program")
        return Ending()

    entry_of(Program(target="train.py"), watch=watch)(
        Start(place=Place(), variables={}), ReportPipe(-1, os.getpid(), (0, 0))
    )
    assert done == ["settled", "program"]
