"""Calls of one signature are split in the same way; attributes that a call changes are no part of it."""

import random

import pytest
import torch
from torch import nn

from samestep.autopilot.split.call_arguments import LIST, CallArguments
from samestep.autopilot.split.call_signatures import (
    MOST_FAILED_SIZES,
    MOST_INTERVALS,
    MOST_SPLIT_SIZES,
    MOST_STATES,
    CallSignatures,
    CheckedSizes,
    GuardIntervals,
    sizes_of,
)
from samestep.autopilot.split.guards import plain_attributes

BATCH = CallArguments((torch.ones(4, 3),), {})


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.phase = 0, 0


def signature_of(signatures, module, call, failed=()):
    plain = plain_attributes(module)
    before = signatures.signature(module, BATCH, plain, failed)
    call(module)
    without, _ = signatures.without_own_changes(module, plain, before)
    return without


def count(module):
    module.calls += 1


def test_an_attribute_that_calls_change_is_not_part_of_the_signature():
    signatures, module = CallSignatures(), Counting()

    first = signature_of(signatures, module, count)

    assert all(signature_of(signatures, module, count) == first for _ in range(20))


def test_an_attribute_that_a_call_makes_was_not_known_to_change():
    signatures, module, are_new = CallSignatures(), Counting(), []
    for _ in range(2):
        plain = plain_attributes(module)
        before = signatures.signature(module, BATCH, plain, ())
        module.has_started = not hasattr(module, "has_started")
        are_new.append(signatures.without_own_changes(module, plain, before)[1])

    assert are_new == [True, False]


def test_batch_norm_counts_in_no_guard():
    module = nn.BatchNorm1d(3)
    before = plain_attributes(module)
    module(torch.randn(4, 3))
    assert plain_attributes(module) == before


def test_an_attribute_that_the_script_changes_is_part_of_the_signature():
    signatures, module = CallSignatures(), Counting()

    first = signature_of(signatures, module, count)
    module.phase = 1
    second = signature_of(signatures, module, count)
    module.phase = 0

    assert first != second
    assert signature_of(signatures, module, count) == first


def test_each_call_may_change_another_attribute():
    signatures, module = CallSignatures(), Counting()
    for number in range(3 * MOST_STATES):
        setattr(module, f"seen_{number}", 0)

    first = signature_of(signatures, module, count)
    for number in range(3 * MOST_STATES):
        last = signature_of(
            signatures, module, lambda module, name=f"seen_{number}": setattr(module, name, 1)
        )

    assert signature_of(signatures, module, count) == last != first


def test_a_new_state_beyond_the_checked_ones_is_treated_as_one_that_cannot_be_split():
    signatures, module, found = CallSignatures(), Counting(), []
    for phase in range(MOST_STATES + 1):
        module.phase = phase
        found.append(signature_of(signatures, module, lambda module: None, failed=found[3:4]))

    assert len(set(found)) == MOST_STATES
    assert found[MOST_STATES] == found[3]


def test_states_none_of_which_could_be_split_are_checked_ever_more_rarely():
    """Each of them costs a check, and fails it."""
    signatures, module, found = CallSignatures(), Counting(), []
    for phase in range(20):
        module.phase = 10 + phase  # beyond the constants of its forward
        found.append(signature_of(signatures, module, lambda module: None, failed=found))

    assert [number for number in range(20) if found[number] not in found[:number]] == [0, 1, 3, 7, 15]


def of(samples):
    return CallArguments((torch.ones(samples, 3),), {})


def test_each_size_is_checked_once():
    sizes = CheckedSizes()

    assert [sizes.are_checked(of(count), count, 2) for count in (8, 9, 8, 9, 10)] == [
        True,
        True,
        False,
        False,
        True,
    ]


def test_fewer_sizes_are_checked_as_their_number_grows():
    sizes = CheckedSizes()

    checked = [count for count in range(10, 74) if sizes.are_checked(of(count), count, 2)]

    assert len(checked) == MOST_SPLIT_SIZES + 4


def test_the_first_size_with_a_slice_of_one_sample_is_checked_however_late():
    sizes = CheckedSizes()
    for count in range(10, 15):
        sizes.are_checked(of(count), count, 2)

    assert sizes.are_checked(of(3), 3, 2)
    assert not sizes.are_checked(of(2), 2, 2)


def test_the_first_size_with_another_dimension_of_size_one_is_checked_however_late():
    sizes = CheckedSizes()

    def is_checked(length, count):
        return sizes.are_checked(CallArguments((torch.ones(length, count, 3),)), count, 2, {(0, 0): 1})

    assert [is_checked(1, count) for count in range(10, 15)] == [True] * MOST_SPLIT_SIZES + [False]
    assert [is_checked(length, 10) for length in (2, 3)] == [True, False]


def test_a_size_twice_the_largest_that_was_checked_is_checked_however_late():
    sizes = CheckedSizes()
    for count in range(10, 15):
        sizes.are_checked(of(count), count, 2)

    assert [sizes.are_checked(of(count), count, 2) for count in (25, 26)] == [False, True]


def test_every_size_is_checked_if_the_sizes_before_have_several_ways():
    sizes = CheckedSizes()

    assert all(sizes.are_checked(of(count), count, 2, have_one_way=False) for count in range(10, 20))


def test_a_size_that_failed_stays_unsplit_after_another_has_passed():
    sizes = CheckedSizes()
    sizes.are_checked(of(5), None, 3)
    sizes.fail(sizes_of(of(5)), "too small")
    sizes.are_checked(of(3), None, 3)

    assert sizes.may_be_split(of(3))
    assert not sizes.may_be_split(of(5))
    assert not sizes.may_be_split(of(4))


def test_each_size_that_failed_keeps_its_reason():
    """Catches the reason of another size, and an empty one after a later size has passed its check."""
    sizes = CheckedSizes()
    sizes.fail(sizes_of(of(5)), "first")
    sizes.fail(sizes_of(of(6)), "second")

    assert [sizes.why(of(count), "") for count in (5, 6, 7)] == ["first", "second", "second"]
    assert sizes.why(of(7), "of the signature") == "of the signature"


def test_a_signature_without_a_plan_is_checked_for_some_sizes_only():
    sizes = CheckedSizes()

    assert sum(sizes.are_checked(of(count), None, 2) for count in range(4, 20)) == MOST_FAILED_SIZES


def test_calls_of_a_policy_that_acts_leave_the_check_of_its_training():
    """Catches a training that stays unsplit since calls of single samples, of some lengths, had failed."""
    sizes = CheckedSizes()
    acts = [CallArguments((torch.ones(1, length, 3),)) for length in range(2, 9)]

    assert sum(sizes.are_checked(given, None, 2) for given in acts) == MOST_FAILED_SIZES
    assert sizes.are_checked(CallArguments((torch.ones(8, 9, 3),)), None, 2)


def test_the_first_list_with_other_largest_parts_in_each_slice_is_checked():
    sizes = CheckedSizes()
    equal = [[count] * 4 for count in range(1, 6)]

    def is_checked(counts):
        given = CallArguments(([torch.ones(count, 2) for count in counts],))
        return sizes.are_checked(given, 4, 2, {(0, 0): LIST})

    assert [is_checked(one) for one in equal] == [True] * MOST_SPLIT_SIZES + [False]
    assert not is_checked([1, 2, 2, 1])  # each slice has an equally small and an equally large part
    assert is_checked([2, 2, 3, 2])


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
    signatures, module = CallSignatures(), Scheduled()

    def signature(temperature):
        module.temperature = temperature
        return signatures.signature(module, BATCH, plain_attributes(module), failed=())

    early = [signature(0.9 - 0.001 * number) for number in range(MOST_STATES + 2)]

    assert early[-1] == early[-2]
    assert signature(0.24) not in early
    assert signature(0.23) == signature(0.24)


def test_a_list_of_losses_that_grows_is_checked_ever_more_rarely():
    """Catches a check for each length of a history that a module keeps for a plot."""
    signatures, module, found = CallSignatures(), Counting(), []
    module.history = []
    for epoch in range(24):
        found.append(signatures.signature(module, BATCH, plain_attributes(module), failed=()))
        module.history.append(1.4 - 0.001 * epoch)
    assert len(set(found)) <= 8
    assert len(set(found[12:])) <= 3


def test_a_call_counter_is_compared_when_it_reaches_a_constant():
    signatures, module = CallSignatures(), Scheduled()
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


def test_zeros_of_another_sign_have_another_signature():
    signatures, module = CallSignatures(), Counting()
    found = []
    for module.phase, number in (0.0, 0.0), (-0.0, 0.0), (0.0, -0.0), (0.0, 0.0):
        call = CallArguments((torch.ones(4, 3), number), {})
        found.append(signatures.signature(module, call, plain_attributes(module), ()))
    assert len(set(found[:3])) == 3
    assert found[3] == found[0]


@pytest.mark.parametrize("all_fail", [False, True])
def test_lists_of_numbers_that_are_new_in_each_call_are_checked_ever_more_rarely(all_fail):
    """As the lengths of texts: those of each batch are another combination of intervals."""
    signatures, module, draw = CallSignatures(), Counting(), random.Random(3)
    plain, found = plain_attributes(module), []
    for _ in range(200):
        call = CallArguments((torch.ones(16, 3), [draw.randint(1, 50) for _ in range(16)]))
        found.append(signatures.signature(module, call, plain, found if all_fail else ()))
    assert len({*found[:100]}) <= (MOST_STATES if all_fail else MOST_INTERVALS) + 7
    assert len({*found[100:]} - {*found[:100]}) == 1


def test_parts_of_a_list_that_become_unequal_change_the_signature_once():
    """Only this catches slices that take the first parts, beyond the numbers of values that are checked."""
    signatures, module, forms = CallSignatures(), Counting(), []
    for step, scales in enumerate([[1.0, 1.0]] * 100 + [[1.0, 0.5], [1.0, 1.0], [0.5, 1.0]]):
        records = [{"id": 2 * step + place, "scale": scale} for place, scale in enumerate(scales)]
        call = CallArguments((torch.ones(2, 3), records))
        forms.append(signatures.signature(module, call, plain_attributes(module), ())[0])
    assert len(set(forms[:100])) == len(set(forms[100:])) == 1
    assert forms[0] != forms[-1]
