"""A script that goes on after a call that has raised on one rank alone is ended; on all, it goes on."""

import pytest
from torch.distributed import HashStore

from samestep.autopilot.failed_calls import FailedCalls
from samestep.base.errors import OutOfStep


def ranks():
    store = HashStore()
    return [FailedCalls(0.05, lambda: store) for _ in range(2)]


def test_a_script_goes_on_where_all_slices_have_raised():
    one, other = ranks()
    one.note("Net", 7, ValueError("bad"))
    other.note("Net", 7, ValueError("bad"))
    one.check(2)
    other.check(2)
    one.check(2)


def test_it_ends_where_another_slice_has_not():
    one, other = ranks()
    one.note("Net", 7, ValueError("bad"))
    other.check(2)
    for _ in range(2):
        with pytest.raises(OutOfStep, match="Net raised ValueError"):
            one.check(2)


def test_other_calls_are_no_answer():
    one, other = ranks()
    one.note("Net", 7, ValueError("bad"))
    other.note("Net", 8, ValueError("bad"))
    with pytest.raises(OutOfStep):
        one.check(2)


def test_an_error_of_samestep_ends_the_run_on_all_ranks():
    for one in ranks():
        one.note("Net", 7, OutOfStep("its slices differ"))
        with pytest.raises(OutOfStep):
            one.check(2)


def test_without_a_store_the_run_ends():
    def none():
        raise ValueError

    alone = FailedCalls(0.0, none)
    alone.note("Net", 1, KeyError("x"))
    with pytest.raises(OutOfStep):
        alone.check(2)
