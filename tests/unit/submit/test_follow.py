"""Following a job logs its states, prints its output, and returns its exit code."""

import os
from functools import partial

import pytest

from samestep.base.errors import Error, UsageError
from samestep.submit.follow import JobStatus, LogStart, follow
from samestep.submit.shell import Answer, run_command
from samestep.submit.slurm import FollowedSlurmJob, submit

JOB = """\
JobId=7 JobName=odd JobState=FAILED name
   UserId=me(1000) GroupId=me(1000) MCS_label=N/A
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode={code}
   RunTime=00:01:05 TimeLimit={limit} TimeMin=N/A
   StartTime=2026-01-02T03:04:05 EndTime=Unknown Deadline=N/A
   NodeList={nodes}
   Command=/home/me/jobs/JobState=COMPLETED.sbatch
   StdErr=/my jobs/train-7.log
   StdOut=/my jobs/train-7.log
"""


def answer(state, *, reason="None", code="0:0", nodes="(null)", restarts=0, limit="01:00:00"):
    text = JOB.format(state=state, reason=reason, code=code, nodes=nodes, restarts=restarts, limit=limit)
    return Answer(0, text, "")


def answers(*given):
    """Return a function that returns the given answers of Slurm one after the other."""
    left = list(given)
    return lambda words: left.pop(0)


def status_after(*given):
    job = FollowedSlurmJob("7", ask=answers(*given))
    return [job.status() for _ in given][-1]


@pytest.mark.parametrize("reason", ["Priority", "QOSMaxGRESPerUser", "SomethingNew"])
def test_the_status_of_a_waiting_job_has_its_reason(reason):
    found = status_after(answer("PENDING", reason=reason))

    assert found.waits
    assert f"({reason})" in found.words


def test_the_status_of_a_running_job_has_its_nodes_and_its_start():
    found = status_after(answer("RUNNING", nodes="node[0-1]", restarts=2))

    assert found.exit_code is None
    assert "node[0-1], start 3" in found.words
    assert str(found.log) == "/my jobs/train-7.log"


@pytest.mark.parametrize(
    ("state", "limit", "times"),
    [
        ("PENDING", "01:00:00", (None, 3600.0, "2026-01-02T03:04:05")),
        ("RUNNING", "UNLIMITED", (65.0, None, "")),
        ("COMPLETED", "1-00:00:00", (65.0, 86400.0, "")),
    ],
)
def test_the_status_has_the_times_of_slurm(state, limit, times):
    found = status_after(answer(state, limit=limit))

    assert (found.elapsed_s, found.limit_s, found.expected_start) == times


@pytest.mark.parametrize(
    ("state", "code", "ends_with"),
    [("COMPLETED", "0:0", 0), ("FAILED", "3:0", 3), ("OUT_OF_MEMORY", "0:9", 137), ("TIMEOUT", "0:0", 1)],
)
def test_a_job_that_ended_has_the_exit_code_of_its_script(state, code, ends_with):
    found = status_after(answer(state, code=code))

    assert found.exit_code == ends_with
    assert (f"exit code {ends_with}" in found.words) == bool(ends_with)


def test_a_job_is_followed_on_if_the_scheduler_does_not_answer():
    found = status_after(
        answer("RUNNING"), Answer(1, "", "slurm_load_jobs error: Unable to contact slurm controller")
    )

    assert "slurm_load_jobs" in found.words
    assert (found.exit_code, str(found.log)) == (None, "/my jobs/train-7.log")


def test_the_exit_code_of_a_purged_job_comes_from_the_accounting():
    gone = Answer(1, "", "slurm_load_jobs error: Invalid job id specified")

    job = FollowedSlurmJob("7", ask=answers(gone, Answer(0, "CANCELLED by 0|0:15\n", "")))
    assert job.status().exit_code == 143
    job = FollowedSlurmJob("7", ask=answers(gone, Answer(1, "", "accounting storage is disabled")))
    with pytest.raises(Error, match="job 7"):
        job.status()


def test_the_number_of_a_job_comes_from_sbatch(tmp_path):
    assert submit(tmp_path, ask=answers(Answer(0, "12;cluster\n", ""))) == "12"
    refused = Answer(1, "", "sbatch: error: Batch job submission failed: Invalid account")
    with pytest.raises(UsageError, match=r"Batch job submission failed: Invalid acc"):
        submit(tmp_path, ask=answers(refused))


def test_without_an_answer_of_sbatch_the_error_suggests_squeue(tmp_path, monkeypatch):
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexec sleep 10\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    with pytest.raises(UsageError, match=r"sbatch .*0\.05 s.*squeue --me"):
        submit(tmp_path / "job", ask=partial(run_command, timeout_s=0.05))


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
def test_the_error_of_an_unreachable_slurm_has_the_reason(tmp_path, answer, why):
    with pytest.raises(UsageError) as refused:
        submit(tmp_path, ask=answers(answer))

    assert f"({why})" in str(refused.value)
    assert "--dry-run" in str(refused.value)


class Scripted:
    """A job with given states, one at each poll."""

    name, stop = "job 7", "scancel 7"

    def __init__(self, *states):
        self._states = list(states)
        self.polls = 0

    def status(self):
        self.polls += 1
        state = self._states.pop(0)
        if callable(state):
            state = state()
        return state


ALL = LogStart()  # no earlier job has written a log of this name


def followed(job, *, each_s=60.0, start=ALL):
    logged, shown, clock = [], [], iter(range(0, 10**6, int(each_s)))
    code = follow(
        job, start=start, log=logged.append, show=shown.append, pause=lambda _: None, now=clock.__next__
    )
    return code, logged, b"".join(shown)


def test_each_state_is_logged_once_and_the_output_is_printed_to_its_end(tmp_path):
    log = tmp_path / "log"

    def write(text, state):
        def status():
            with log.open("ab") as file:
                file.write(text)
            return state

        return status

    runs = JobStatus(words="runs", log=log)
    job = Scripted(
        JobStatus(words="waits", waits=True),
        JobStatus(words="waits", waits=True),
        write(b"one\n", runs),
        write(b"two\n", runs),
        write(b"last\n", JobStatus(words="has failed, exit code 3", log=log, exit_code=3)),
    )

    code, logged, shown = followed(job)

    assert (code, shown) == (3, b"one\ntwo\nlast\n")
    states = ["job 7 waits", "job 7 runs", "job 7 has failed, exit code 3"]
    assert [line.startswith(state) for line, state in zip(logged, states, strict=True)] == [True] * 3


def test_a_log_that_is_overwritten_is_printed_from_its_start(tmp_path):
    log = tmp_path / "log"

    def write(text, code=None):
        def status():
            log.write_bytes(text)
            return JobStatus(words="runs", log=log, exit_code=code)

        return status

    assert followed(Scripted(write(b"first attempt\n"), write(b"second\n", code=0)))[2] == (
        b"first attempt\nsecond\n"
    )


@pytest.mark.parametrize(
    ("appends", "in_file"),
    [(False, b"a new log, longer\n"), (True, b"an old log\na new log\n")],
    ids=["overwritten", "appended to"],
)
def test_the_log_of_an_earlier_job_is_not_printed(tmp_path, appends, in_file):
    log = tmp_path / "log"
    log.write_bytes(b"an old log\n")
    os.utime(log, ns=(1, 1))

    def starts():
        log.write_bytes(in_file)
        return JobStatus(words="runs", log=log)

    waits = JobStatus(words="waits", log=log, waits=True)
    ends = JobStatus(words="ends", log=log, exit_code=0)
    start = LogStart(since_ns=2, appends=appends)

    assert followed(Scripted(waits, waits, starts, ends), start=start)[2] == (
        in_file.removeprefix(b"an old log\n")
    )


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_missing_log_is_reported_where_there_must_be_one(tmp_path, cut_off):
    log = tmp_path / "log-%N"
    job = Scripted(JobStatus(words="ends", log=log, exit_code=53, cut_off=cut_off))

    assert [str(log) in line for line in followed(job)[1]] == [False, True][: 2 - cut_off]


def test_the_times_are_shown_until_the_end():
    shown = []
    job = Scripted(*[JobStatus(words="runs")] * 3, JobStatus(words="ends", exit_code=0))

    follow(job, log=id, show=id, show_times=shown.append, pause=id, now=iter(range(0, 10**6, 60)).__next__)

    *times, last = shown
    assert len(set(times)) == 3
    assert last == ""


def test_the_scheduler_is_polled_less_often_than_the_log_is_read():
    job = Scripted(*[JobStatus(words="runs")] * 9, JobStatus(words="ends", exit_code=0))

    follow(
        job,
        log=lambda _: None,
        show=lambda _: None,
        pause=lambda _: None,
        now=(tick / 10 for tick in range(10**6)).__next__,
    )
    assert job.polls == 10
