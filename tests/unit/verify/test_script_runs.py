"""Runs are as long as their reference, which must not have failed."""

import pytest

from samestep.base.errors import UsageError
from samestep.launch.job import Program
from samestep.launch.local.failure import Failure
from samestep.verify.run_length import LEAST_STEPS
from samestep.verify.run_record import RunRecord
from samestep.verify.script_runs import Script, length_after, require_end
from samestep.verify.trace import Facts, Step, Trace

SCRIPT = Script(program=Program(target="train.py"), kind="serial")


def ended_by(how, *, failure=None, message=""):
    """Return the record of a run of 30 steps."""
    facts = Facts(rank=0, epsilon=1e-7, ended=how, message=message)
    return RunRecord(
        [Trace(facts, [Step(index=index) for index in range(30)], 30)], runs_once=False, failure=failure
    )


@pytest.mark.parametrize(("how", "expected"), [("steps", 30), ("end", 60 + LEAST_STEPS)])
def test_a_run_is_stopped_with_its_reference_unless_that_has_ended_by_itself(how, expected):
    """Only this finds a run that is stopped before it shows that it makes more steps than its reference."""
    assert length_after(ended_by(how)).total(1) == expected


@pytest.mark.parametrize("how", ["killed", "ValueError"])
@pytest.mark.parametrize("failure", [None, Failure(rank=0, local_rank=0, pid=7, exit_code=-9)])
def test_a_reference_that_has_failed_is_refused(how, failure):
    """Only this finds steps that are compared with those of a run which ran out of memory."""
    with pytest.raises(UsageError, match=r"train\.py fails on 1 worker"):
        require_end(ended_by(how, failure=failure), SCRIPT, "on 1 worker")


def test_a_reference_that_has_failed_for_want_of_a_gpu_is_refused_with_the_option_for_that():
    ended = ended_by("AssertionError", message="Torch not compiled with CUDA enabled")
    with pytest.raises(UsageError, match="--device cpu"):
        require_end(ended, SCRIPT, "on 1 worker")


@pytest.mark.parametrize("how", ["steps", "end"])
def test_a_reference_that_was_stopped_or_has_ended_is_used(how):
    require_end(ended_by(how), SCRIPT, "on 1 worker")
