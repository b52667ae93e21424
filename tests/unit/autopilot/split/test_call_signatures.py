"""Calls of one signature are split in the same way; attributes that a call changes are no part of it."""

import torch
from torch import nn

from samestep.autopilot.split.call_plans import CallArguments
from samestep.autopilot.split.call_signatures import MOST_STATES, CallSignatures
from samestep.autopilot.split.guards import plain_attributes

BATCH = CallArguments((torch.ones(4, 3),), {})


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.phase = 0, 0


def signature_of(signatures, module, call, plans=None):
    plain = plain_attributes(module)
    plans = {} if plans is None else plans
    before = signatures.signature(module, BATCH, plain, plans)
    call(module)
    return signatures.without_own_changes(module, plain, before)


def count(module):
    module.calls += 1


def test_an_attribute_that_calls_change_is_not_part_of_the_signature():
    signatures, module = CallSignatures(torch.device("cpu")), Counting()

    first = signature_of(signatures, module, count)

    assert all(signature_of(signatures, module, count) == first for _ in range(20))


def test_an_attribute_that_the_script_changes_is_part_of_the_signature():
    signatures, module = CallSignatures(torch.device("cpu")), Counting()

    first = signature_of(signatures, module, count)
    module.phase = 1
    second = signature_of(signatures, module, count)
    module.phase = 0

    assert first != second
    assert signature_of(signatures, module, count) == first


def test_each_call_may_change_another_attribute():
    signatures, module = CallSignatures(torch.device("cpu")), Counting()
    for number in range(3 * MOST_STATES):
        setattr(module, f"seen_{number}", 0)

    first = signature_of(signatures, module, count)
    for number in range(3 * MOST_STATES):
        last = signature_of(
            signatures, module, lambda module, name=f"seen_{number}": setattr(module, name, 1)
        )

    assert signature_of(signatures, module, count) == last != first


def test_a_new_state_beyond_the_checked_ones_is_treated_as_one_that_cannot_be_split():
    signatures, module, plans = CallSignatures(torch.device("cpu")), Counting(), {}
    for phase in range(MOST_STATES):
        module.phase = phase
        plans[signature_of(signatures, module, lambda module: None)] = None if phase == 3 else "split"
    unsplit = next(one for one, plan in plans.items() if plan is None)
    module.phase = MOST_STATES

    assert signature_of(signatures, module, lambda module: None, plans) == unsplit
