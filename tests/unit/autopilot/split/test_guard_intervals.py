"""Guards differ by the constants that a module may compare them with."""

import torch
from torch import nn

from samestep.autopilot.split.call_plans import CallArguments
from samestep.autopilot.split.call_signatures import MOST_STATES, CallSignatures
from samestep.autopilot.split.guard_intervals import GuardIntervals
from samestep.autopilot.split.guards import plain_attributes

BATCH = CallArguments((torch.ones(4, 3),), {})


class Scheduled(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature, self.warm_up, self.calls = 1.0, 40, 0

    def forward(self, x):
        self.calls += 1
        return x if self.temperature < 0.25 or self.calls == self.warm_up else -x


def test_numbers_between_the_same_constants_share_an_interval():
    intervals = GuardIntervals({0.25, 40, "a"})

    assert intervals.of(0.3) == intervals.of(39)
    assert len({intervals.of(one) for one in (0.2, 0.25, 0.3, 40, 41)}) == 5
    assert intervals.of("b") == intervals.of("c") != intervals.of("a")
    assert intervals.of(("x", True)) == intervals.of(("y", True)) != intervals.of(("y", False))


def test_a_value_beyond_a_constant_has_its_own_signature():
    signatures, module = CallSignatures(torch.device("cpu")), Scheduled()

    def signature(temperature):
        module.temperature = temperature
        return signatures.signature(module, BATCH, plain_attributes(module), failed=())

    early = [signature(0.9 - 0.001 * number) for number in range(MOST_STATES + 2)]

    assert early[-1] == early[-2]
    assert signature(0.24) not in early
    assert signature(0.23) == signature(0.24)


def test_a_call_counter_is_compared_when_it_reaches_a_constant():
    signatures, module = CallSignatures(torch.device("cpu")), Scheduled()
    found = []
    for call in range(1, 50):
        plain = plain_attributes(module)
        signature = signatures.signature(module, BATCH, plain, failed=())
        if call > 1 and signatures.counts_to_new_interval(module, plain):
            found.append(call)
        module(torch.ones(4, 3))
        signatures.without_own_changes(module, plain, signature)

    assert 40 in found
    assert not set(range(5, 39)) & set(found)
