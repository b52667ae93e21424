"""The report of a worker that a signal ended has its line, and what the other ranks did."""

import signal
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from samestep.base.worker_records import Frame
from samestep.launch.local.failure import _CRASHED, _SENT, Failure, explain_death
from samestep.ranks.hang.rank_status import RankStatus, Wait

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
