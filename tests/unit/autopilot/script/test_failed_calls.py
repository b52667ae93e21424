"""A script that continues after an error in a call ends, unless the call has raised on all ranks."""

import pytest
from torch.distributed import HashStore

from samestep.autopilot.script.failed_calls import FailedCalls
from samestep.base.errors import OutOfStep


def ranks():
    store = HashStore()
    return [FailedCalls(0.05, lambda: store) for _ in range(2)]


def test_a_script_continues_if_all_slices_have_raised():
    one, other = ranks()
    one.record("Net", 7, ValueError("bad"))
    other.record("Net", 7, ValueError("bad"))
    one.check(2)
    other.check(2)
    one.check(2)


def test_a_script_ends_if_another_slice_has_not_raised():
    one, other = ranks()
    one.record("Net", 7, ValueError("bad"))
    other.check(2)
    for _ in range(2):
        with pytest.raises(OutOfStep, match="Net raised ValueError"):
            one.check(2)


def test_errors_of_other_calls_do_not_count():
    one, other = ranks()
    one.record("Net", 7, ValueError("bad"))
    other.record("Net", 8, ValueError("bad"))
    with pytest.raises(OutOfStep):
        one.check(2)


def test_an_error_of_samestep_ends_the_run_on_all_ranks():
    for one in ranks():
        one.record("Net", 7, OutOfStep("its slices differ"))
        with pytest.raises(OutOfStep):
            one.check(2)


def test_without_a_store_the_run_ends():
    def none():
        raise ValueError

    alone = FailedCalls(0.0, none)
    alone.record("Net", 1, KeyError("x"))
    with pytest.raises(OutOfStep):
        alone.check(2)
