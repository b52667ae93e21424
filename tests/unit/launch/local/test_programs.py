import os
import sys
from types import SimpleNamespace

import pytest

from samestep.base.place import Place
from samestep.launch.job import Program
from samestep.launch.local import programs
from samestep.launch.local.child import ReportPipe, Start
from samestep.launch.local.hosting import Ending
from samestep.launch.local.programs import entry_of, has_common_group

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
    monkeypatch.setattr(programs, "seed_generators", lambda: None)
    monkeypatch.setattr(programs, "settle_math_kernels", lambda: done.append("settled"))

    def watch(*_):
        done.append("program")
        return Ending()

    entry_of(Program(target="train.py"), watch=watch)(
        Start(place=Place(), variables={}), ReportPipe(-1, os.getpid(), (0, 0))
    )
    assert done == ["settled", "program"]
