"""Jobs that samestep writes, given to a real Slurm, and followed to their end."""

import re
import sys
import time

import pytest

from support.commands import finish
from support.launches import PLACE, placed, places
from support.run_files import json_lines, json_lines_so_far
from support.tiers import long_param

SUBMIT = (sys.executable, "-m", "samestep", "submit")


@pytest.fixture
def here(tmp_path):
    """A folder with a script."""
    (tmp_path / "fails.py").write_text("import sys; print('so far'); sys.exit(3)")
    return tmp_path


@pytest.mark.parametrize(
    ("launch", "odd"),
    [("tasks", 'a "name"; with $(odd) \\ parts'), long_param("node", "plain")],
    ids=["tasks", "node"],
)
def test_a_job_of_slurm_runs_on_its_nodes_and_is_followed_to_its_end(slurm, here, launch, odd):
    flags = ("--nodes", 2, "--nproc-per-node", 2, "--launch", launch, "--job-name", odd)
    done = slurm.run(*SUBMIT, "slurm", *flags, "run", *PLACE, folder=here)

    assert done.code == 0, done.err
    assert places(done.out)[0] == placed("node0", "node0", "node1", "node1")
    said = [line for line in done.err.splitlines() if line.startswith("samestep: job ")]
    number = said[0].split()[2]
    assert all(one in said[0] for one in ("4 workers on 2 nodes", "jobs/"))
    assert len(said) > 1
    assert said[-1].startswith(f"samestep: job {number} ")
    assert f"JobName={odd}\n" in slurm.run("scontrol", "show", "job", number).out


def test_a_command_has_the_exit_code_of_its_failed_job(slurm, here):
    done = slurm.run(*SUBMIT, "slurm", "fails.py", folder=here)

    assert done.code == 3
    assert "so far" in done.out.splitlines()
    assert "has failed, exit code 3" in done.err.splitlines()[-1]


def test_a_job_that_slurm_refuses_is_one_line(slurm, here):
    done = slurm.run(*SUBMIT, "slurm", "--partition", "none", "fails.py", folder=here)

    assert done.code == 2
    (line,) = done.err.splitlines()
    assert "invalid partition specified: none" in line


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_training_resumes_after_a_warning_a_preemption_and_the_loss_of_its_first_node(slurm, here):
    flags = ("--requeue", "--job-name", "long", "--nodes", 2)
    train = ("train", "digits", "--subset", 480, "--batch-size", 32, "--epochs", 20, "--checkpoint-steps", 10)
    following = slurm.start(*SUBMIT, "slurm", *flags, *train, "--threads", 1, folder=here)
    number = following.stderr.readline().split()[2]
    run = here / "runs" / f"train-digits-{number}"

    def await_start(count):
        """Return once this start of the job is some steps on."""
        steps = len(json_lines_so_far(run / "metrics.jsonl")) + 25
        while (
            len(json_lines_so_far(run / "sessions.jsonl")) < count
            or len(json_lines_so_far(run / "metrics.jsonl")) < steps
        ):
            assert following.poll() is None, following.communicate()
            time.sleep(0.05)

    await_start(1)
    slurm.run("scancel", "--signal=USR1", number)  # as Slurm does near the limit: the steps, not the script
    slurm.start_again(number)
    await_start(2)
    slurm.run("scontrol", "requeue", number)  # as Slurm does for a job that goes before: SIGTERM to all
    slurm.start_again(number)
    await_start(3)
    first = slurm.run("squeue", "--noheader", "--format=%B", f"--jobs={number}").out.strip()
    with slurm.lost(first):  # where the ranks meet, and the job's script runs
        slurm.start_again(number)
        done = finish(following)

    assert done.code == 0, done.err
    stopped = re.findall(r"samestep: stopped by (\w+) after step (\d+) of 300, with a checkpoint\.", done.out)
    assert [name for name, _ in stopped] == ["SIGUSR1", "SIGTERM"]
    assert [f"resumes from step-{step}, step {step} of 300" in done.out for _, step in stopped] == [
        True,
        True,
    ]
    assert f"samestep train --resume runs/train-digits-{number}" in done.out
    assert "samestep: the job is requeued" in done.out
    assert "right (" in done.out  # the result, of the last start
    assert re.search(r"runs on node\[1-2\], start 4\b", done.err)
    assert (run / "result.json").exists()
    assert [row["world_size"] for row in json_lines(run / "sessions.jsonl")] == [2, 2, 2, 2]
    steps = [row["step"] for row in json_lines(run / "metrics.jsonl")]
    assert steps == list(range(1, 20 * 15 + 1))
