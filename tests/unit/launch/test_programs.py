import sys
from types import SimpleNamespace

import pytest

from samestep.launch.programs import has_met

C10D = "torch.distributed.distributed_c10d"


@pytest.fixture
def traces(monkeypatch):
    """Set what is left of torch.distributed in this process."""

    def leave(method, *, initialised=False, hook=sys.__excepthook__):
        state = SimpleNamespace(_default_pg_init_method=method, is_initialized=lambda: initialised)
        for name in ("samestep.world.join", "torch.distributed.rpc"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, C10D, state)
        monkeypatch.setattr(sys, "excepthook", hook)

    return leave


def test_a_worker_without_any_trace_has_not_met(traces):
    traces(None)
    assert not has_met(2)
    assert has_met(1)


@pytest.mark.parametrize(
    "trace",
    [
        {"method": "env://"},
        {"method": None, "initialised": True},
        # A group made with `store=` has no method; its excepthook outlives it.
        {"method": None, "hook": lambda *_: None},
    ],
)
def test_any_trace_of_a_group_is_believed(traces, trace):
    traces(**trace)
    assert has_met(2)
