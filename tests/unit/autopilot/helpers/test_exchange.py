"""Messages to helpers name all that is released, and mirrors are sent again where helpers lost them."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from samestep.autopilot.helpers.exchange import Exchange
from samestep.autopilot.helpers.helper import Check, NewMirror
from samestep.autopilot.helpers.mirrors import MirrorError
from samestep.autopilot.helpers.surroundings import Surroundings
from samestep.autopilot.split.call_arguments import CallArguments
from samestep.autopilot.split_calls import ModuleCall
from samestep.hooks.random_draws import RngState

CPU = torch.device("cpu")


class Line:
    """A connection to helpers that may refuse to send, or to use, the next message of a class."""

    unsent: type | None = None
    error = ""

    def __init__(self):
        self.sent = []

    def send(self, message, *, key=None, rows=None):
        if type(message) is self.unsent:
            raise TypeError
        self.sent.append(message)

    def collect(self):
        return self.error

    def count(self, kind):
        return len([message for message in self.sent if type(message) is kind])


class Scaled(nn.Linear):
    scale = 1.0

    def forward(self, x):
        return super().forward(x) * self.scale


@pytest.fixture
def line():
    return Line()


@pytest.fixture
def exchange(line):
    slices = SimpleNamespace(graphs={}, checks={})
    return Exchange(SimpleNamespace(slices=slices, line=line, size=2, shares_memory=False))


def check(exchange, module, number=1):
    call = ModuleCall(nn.Module.__call__, module, CallArguments((torch.ones(4, 3),)))
    modes, streams = Surroundings.now(module, CPU), RngState.now(CPU)
    exchange.send_check(call, number, modes, streams, declared=None, begins=True)


def test_numbers_of_a_message_that_failed_are_in_the_next_one(exchange, line):
    """Helpers kept the graph of a call, as the arguments of the next call could not be sent."""
    module = Scaled(3, 2)
    exchange.release(3)
    exchange.drop_check(5)
    line.unsent = Check
    with pytest.raises(MirrorError):
        check(exchange, module)
    line.unsent = None
    check(exchange, module)
    assert (line.sent[-1].released, line.sent[-1].dropped) == ([3], [5])
    check(exchange, module)
    assert (line.sent[-1].released, line.sent[-1].dropped) == ([], [])


def test_a_mirror_that_helpers_have_replaced_in_vain_is_sent_again(exchange, line):
    module = Scaled(3, 2)
    check(exchange, module)
    module.scale = 2.0
    line.error = "there is no such class"
    with pytest.raises(MirrorError):
        check(exchange, module)
    del module.scale
    line.error = ""
    check(exchange, module)
    assert line.count(NewMirror) == 3
