import pytest

from samestep.launch.local.failure import Failure, root_cause


def failure(rank, exit_code=1, error="", message=""):
    return Failure(rank=rank, local_rank=rank, pid=7, exit_code=exit_code, error=error, message=message)


GONE = failure(0, error="RuntimeError", message="[..pair.cc:553] Connection closed by peer [127.0.0.1]:1")
REFUSED = failure(3, error="RuntimeError", message="Gloo connectFullMesh failed with ... Connection refused")
ABORTED = failure(0, exit_code=-6)
ASKED = failure(2, exit_code=-15)
CTRL_C = failure(2, exit_code=130, error="KeyboardInterrupt")
KILLED = failure(1, exit_code=-9)
RAISED = failure(1, error="ValueError", message="boom")
EXITED = failure(1, exit_code=3)


@pytest.mark.parametrize("consequence", [GONE, REFUSED, ABORTED, ASKED, CTRL_C])
@pytest.mark.parametrize("cause", [KILLED, RAISED, EXITED])
def test_a_cause_is_preferred_to_its_consequence_in_any_order(consequence, cause):
    assert root_cause([consequence, cause]) is cause
    assert root_cause([cause, consequence]) is cause


def test_the_first_of_several_causes_is_returned():
    assert root_cause([RAISED, KILLED]) is RAISED
    assert root_cause([KILLED, RAISED]) is KILLED


def test_a_consequence_without_a_cause_is_returned():
    assert root_cause([GONE]) is GONE


@pytest.mark.parametrize(("which", "code"), [(KILLED, 137), (ABORTED, 134), (EXITED, 3), (RAISED, 1)])
def test_exit_codes_are_those_that_a_shell_returns(which, code):
    assert which.code == code


@pytest.mark.parametrize(
    ("which", "words"),
    [(KILLED, "signal 9 (SIGKILL)"), (RAISED, "failed with ValueError"), (EXITED, "exit code 3")],
)
def test_the_message_of_a_failure_has_the_rank_and_the_kind_of_end(which, words):
    assert words in which.describe(2)
    assert which.describe(2).startswith("rank 1 of 2 (local rank 1, pid 7) ")
