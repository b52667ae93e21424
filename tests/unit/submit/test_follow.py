"""Following a job: its states in words, its log as it grows, and how it ended."""

import os

import pytest

from samestep.base.errors import Error, UsageError
from samestep.submit import cluster
from samestep.submit.cluster import Answer, SlurmFollowed, submit
from samestep.submit.follow import Seen, follow

JOB = """\
JobId=7 JobName=odd JobState=FAILED name
   UserId=me(1000) GroupId=me(1000) MCS_label=N/A
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode={code}
   NodeList={nodes}
   Command=/home/me/jobs/JobState=COMPLETED.sbatch
   StdErr=/my jobs/train-7.log
   StdOut=/my jobs/train-7.log
"""


def said(state, *, reason="None", code="0:0", nodes="(null)", restarts=0):
    return Answer(0, JOB.format(state=state, reason=reason, code=code, nodes=nodes, restarts=restarts), "")


def answers(*given):
    """Return what stands for Slurm: it gives one answer after the other."""
    left = list(given)
    return lambda words: left.pop(0)


def seen(*given):
    job = SlurmFollowed("7", ask=answers(*given))
    return [job.look() for _ in given][-1]


def test_a_job_that_waits_says_for_what():
    assert seen(said("PENDING", reason="Priority")).words == "waits behind jobs of higher priority (Priority)"
    assert "within a limit (QOSMaxGRESPerUser)" in seen(said("PENDING", reason="QOSMaxGRESPerUser")).words
    assert seen(said("PENDING", reason="SomethingNew")).words == "waits (SomethingNew)"


def test_a_job_that_runs_says_where_and_which_start_it_is():
    found = seen(said("RUNNING", nodes="node[0-1]", restarts=2))

    assert (found.words, found.exit_code) == ("runs on node[0-1], start 3", None)
    assert str(found.log) == "/my jobs/train-7.log"


@pytest.mark.parametrize(
    ("state", "code", "ends_with"),
    [("COMPLETED", "0:0", 0), ("FAILED", "3:0", 3), ("OUT_OF_MEMORY", "0:9", 137), ("TIMEOUT", "0:0", 1)],
)
def test_a_job_that_ended_has_the_exit_code_of_its_script(state, code, ends_with):
    found = seen(said(state, code=code))

    assert found.exit_code == ends_with
    assert (f"exit code {ends_with}" in found.words) == bool(ends_with)


def test_a_scheduler_that_does_not_answer_ends_nothing():
    found = seen(said("RUNNING"), Answer(1, "", "slurm_load_jobs error: Unable to contact slurm controller"))

    assert found.words.startswith("Slurm does not answer (slurm_load_jobs")
    assert (found.exit_code, str(found.log)) == (None, "/my jobs/train-7.log")


def test_a_forgotten_job_is_looked_up_in_the_accounting():
    gone = Answer(1, "", "slurm_load_jobs error: Invalid job id specified")

    job = SlurmFollowed("7", ask=answers(gone, Answer(0, "CANCELLED by 0|0:15\n", "")))
    assert job.look().exit_code == 143
    job = SlurmFollowed("7", ask=answers(gone, Answer(1, "", "accounting storage is disabled")))
    with pytest.raises(Error, match="no longer knows job 7"):
        job.look()


def test_the_number_of_a_job_comes_from_sbatch(tmp_path):
    assert submit(tmp_path, ask=answers(Answer(0, "12;cluster\n", ""))) == "12"
    refused = Answer(1, "", "sbatch: error: Batch job submission failed: Invalid account")
    with pytest.raises(
        UsageError, match=r"did not take the job .*: Batch job submission failed: Invalid acc"
    ):
        submit(tmp_path, ask=answers(refused))


def test_a_job_may_be_in_the_queue_though_sbatch_did_not_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "_PATIENCE_S", 0.05)
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexec sleep 10\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    with pytest.raises(UsageError, match=r"did not answer within .* may have taken the job .*squeue --me"):
        submit(tmp_path / "job")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            Answer(
                1,
                "",
                "sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
                "sbatch: fatal: Could not establish a configuration source\n",
            ),
            "Could not establish a configuration source",
        ),
        (
            Answer(1, "", "sbatch: error: Batch job submission failed: Unable to contact slurm controller\n"),
            "Batch job submission failed: Unable to contact slurm controller",
        ),
    ],
)
def test_a_slurm_that_cannot_be_reached_is_told_from_one_that_refuses(tmp_path, answer, why):
    with pytest.raises(UsageError) as refused:
        submit(tmp_path, ask=answers(answer))

    assert str(refused.value).startswith(f"Slurm does not answer here ({why}). Submit from a login node")


class Scripted:
    """A job that goes through given states, one at each look."""

    name, stop = "job 7", "scancel 7"

    def __init__(self, *states):
        self._states = list(states)
        self.looks = 0

    def look(self):
        self.looks += 1
        state = self._states.pop(0)
        if callable(state):
            state = state()
        return state


def followed(job, *, each_s=60.0):
    told, shown, clock = [], [], iter(range(0, 10**6, int(each_s)))
    code = follow(job, tell=told.append, show=shown.append, pause=lambda _: None, now=clock.__next__)
    return code, told, b"".join(shown)


def test_each_state_is_told_once_and_the_log_is_shown_to_its_end(tmp_path):
    log = tmp_path / "log"

    def write(text, state):
        def look():
            with log.open("ab") as file:
                file.write(text)
            return state

        return look

    runs = Seen(words="runs", log=log)
    job = Scripted(
        Seen(words="waits", waits=True),
        Seen(words="waits", waits=True),
        write(b"one\n", runs),
        write(b"two\n", runs),
        write(b"last\n", Seen(words="has failed, exit code 3", log=log, exit_code=3)),
    )

    assert followed(job) == (
        3,
        ["job 7 waits.", "job 7 runs.", "job 7 has failed, exit code 3."],
        b"one\ntwo\nlast\n",
    )


def test_a_log_that_is_written_anew_is_shown_anew(tmp_path):
    log = tmp_path / "log"

    def write(text, code=None):
        def look():
            log.write_bytes(text)
            return Seen(words="runs", log=log, exit_code=code)

        return look

    assert followed(Scripted(write(b"first attempt\n"), write(b"second\n", code=0)))[2] == (
        b"first attempt\nsecond\n"
    )


def test_the_scheduler_is_not_asked_at_every_look_at_the_log():
    job = Scripted(*[Seen(words="runs")] * 9, Seen(words="ends", exit_code=0))

    follow(
        job,
        tell=lambda _: None,
        show=lambda _: None,
        pause=lambda _: None,
        now=(tick / 10 for tick in range(10**6)).__next__,
    )
    assert job.looks == 10
