"""Job scripts run in a real bash, with stubs of srun and scontrol."""

import os
import signal
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.base.polling import holds_within
from samestep.submit.job_command import parse_command
from samestep.submit.site_defaults import SlurmSite
from samestep.submit.slurm import SlurmJob, script
from support.commands import finish
from support.forked_commands import start

WORDS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=20)
COUNTS = ("-n", "--nproc-per-node", "--nproc_per_node")
"""Flags that samestep reads itself; hypothesis finds them as strings in the code that it tests."""
LINES = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=20)


def job(**changes):
    plain = {
        "command": parse_command(["train", "digits"]),
        "name": "train",
        "nodes": 2,
        "per_node": 4,
        "site": SlurmSite(),
        "output": "log",
        "python": "/a b/python",
    }
    return SlurmJob(**plain | changes)


def srun_arguments(text):
    """Return the arguments of srun in a job that bash runs."""
    srun = "srun() { printf '%s\\0' \"$@\"; }\n"
    ended = subprocess.run(["bash", "-c", srun + text], capture_output=True, check=True)
    return ended.stdout.decode().split("\0")[:-1]


@settings(max_examples=40)
@given(st.lists(WORDS.filter(lambda word: not word.startswith(COUNTS)), max_size=12), LINES)
def test_arguments_pass_unchanged_through_a_real_shell(arguments, name):
    made = job(command=parse_command(["train", "digits", *arguments]), name=name)

    words = srun_arguments(script(made))

    at = words.index("-m")
    assert words[at - 1] == "/a b/python"
    assert words[at:] == ["-m", "samestep", "train", "digits", *arguments]


@pytest.mark.parametrize(
    ("code", "starts", "again"),
    [(0, 0, False), (1, 0, False), (75, 0, True), (138, 99, True), (143, 0, False), (75, 100, False)],
)
def test_only_a_job_that_can_resume_is_requeued(code, starts, again):
    stubs = f"srun() {{ return {code}; }}\nscontrol() {{ echo scontrol $*; }}\nSLURM_JOB_ID=7\n"
    stubs += f"SLURM_RESTART_COUNT={starts}\n" if starts else ""
    ended = subprocess.run(
        ["bash", "-c", stubs + script(job(warning_s=60))], capture_output=True, text=True, check=False
    )

    assert ended.returncode == code
    assert ended.stdout == ("scontrol requeue 7\n" if again else "")


def test_a_missing_environment_ends_the_job_before_the_workers_start(tmp_path):
    made = script(job(site=SlurmSite(venv=str(tmp_path / "no venv"))))
    ended = subprocess.run(
        ["bash", "-c", "srun() { echo started; }\n" + made], capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stdout) == (1, "")


@pytest.mark.parametrize(
    "changes",
    [
        {"warning_s": 60},
        {"launch": "node"},
        {"site": SlurmSite(container="a#b;c", container_runtime="pyxis", modules=("m n",))},
        {"site": SlurmSite(venv="~/it's")},
        {"site": SlurmSite(container="a\nexit 9", container_runtime="pyxis")},
    ],
)
def test_a_job_of_slurm_is_valid_bash(changes):
    subprocess.run(["bash", "-n"], input=script(job(**changes)), text=True, check=True)


STUBS = {
    "sbatch": "echo 7",
    "scontrol": "echo JobId=7; echo '   JobState=RUNNING RunTime=00:00:01'",
}
"""Commands of a Slurm that runs job 7."""


def test_ctrl_c_ends_the_command_that_follows_a_job_and_not_the_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    for name, text in STUBS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "scancel").write_text(f"#!/bin/sh\ntouch {tmp_path}/cancelled\n")
    (tmp_path / "scancel").chmod(0o755)
    command = start("submit", "slurm", "train.py", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert holds_within(lambda: "job 7" in command.said()[1], 60), command.said()

    os.kill(command.pid, signal.SIGINT)
    ended = finish(command)

    assert ended.code == 130
    assert "scancel 7" in ended.err.splitlines()[-1]
    assert not (tmp_path / "cancelled").exists()
