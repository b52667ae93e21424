import signal
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from samestep.base.worker_records import Frame
from samestep.launch.local.failure import _CRASHED, _SENT, Failure, explain_death, root_cause
from samestep.ranks.hang.rank_status import RankStatus, Wait


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


ALL_REDUCE = Frame(str(Path(torch.__file__).parent / "distributed" / "distributed_c10d.py"), 7, "all_reduce")
TRAINING = """\
    for batch in loader:
        loss.backward()
        optimizer.step()
    dist.all_reduce(total)
    """


def died(number, *frames, others, own=""):
    failure = Failure(rank=1, local_rank=1, pid=7, exit_code=-number)
    known = {0: others, 1: RankStatus(generation=0, beat=1, line=own)}
    return explain_death(failure, frames, known, size=2)


def in_all_reduce(line, *, state="failed"):
    wait = Wait(op="all_reduce", seq=9, group="0", ranks=(0, 1), age_s=0.0)
    return RankStatus(generation=0, beat=1, state=state, line=line, wait=wait)


def test_the_line_of_the_stack_is_reported_and_the_collective_of_the_other_rank():
    found = died(
        11, Frame("train.py", 12, "<module>"), others=in_all_reduce("train.py:9: step()"), own="x.py:1"
    )

    assert (found.rank, found.line, found.error, found.code) == (1, "train.py:12", "", 139)
    assert (
        "pid 7) was killed by signal 11 (SIGSEGV) at train.py:12; rank 0 was in all_reduce #9 at train.py:9"
        in (found.describe(2))
    )


def test_without_a_stack_the_last_known_line_is_reported_as_such():
    found = died(9, others=in_all_reduce("train.py:9"), own="train.py:4: read()")

    assert found.line == "train.py:4"
    assert "last seen at train.py:4" in found.describe(2)


@pytest.mark.parametrize(
    ("number", "advice"),
    [(signal.SIGSEGV, _CRASHED), (signal.SIGTERM, _SENT), (signal.SIGALRM, _SENT), (40, _SENT)],
)
def test_only_a_fault_of_native_code_is_a_crash(number, advice):
    found = died(number, others=in_all_reduce("train.py:9"), own="train.py:4: read()")

    assert found.message.endswith(advice)


def test_a_failure_without_a_stack_or_a_status_is_unchanged():
    failure = Failure(rank=0, local_rank=0, pid=7, exit_code=-9)

    assert explain_death(failure, [], {}, size=1) == failure


@pytest.mark.parametrize(("dead", "live", "left"), [(4, 2, 1), (2, 4, 0), (2, 2, None)])
def test_the_rank_that_left_the_loop_is_at_fault_for_an_abort_in_a_collective(tmp_path, dead, live, left):
    file = tmp_path / "train.py"
    file.write_text(dedent(TRAINING))
    found = died(6, ALL_REDUCE, Frame(str(file), dead, "<module>"), others=in_all_reduce(f"{file}:{live}: x"))

    assert (found.rank, found.error) == ((1, "") if left is None else (left, "StepsDiffer"))
    assert f"in all_reduce #9 at {file}:{dead}" in found.describe(2)
