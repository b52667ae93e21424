"""Job scripts run in a real bash, with stubs of srun, scontrol and ssh."""

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.launch.submit.follow import DetachedJob, follow
from samestep.launch.submit.job_command import parse_command
from samestep.launch.submit.mpi import MpiJob
from samestep.launch.submit.mpi import script as mpi_script
from samestep.launch.submit.mpi_hosts import hosts_of, unusable
from samestep.launch.submit.site_defaults import MpiSite, SlurmSite
from samestep.launch.submit.slurm import SlurmJob, script
from support.commands import await_end_of, finish, lines, start

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


def ssh(folder, body):
    """Write a stub of ssh, which runs the command of the other host here."""
    path = folder / "ssh"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_hosts_are_checked_for_the_folder_the_program_and_samestep(tmp_path):
    reach = ssh(tmp_path, 'while [ "$1" = -o ]; do shift 2; done; shift; exec sh -c "$1"')
    (tmp_path / "it's here.py").touch()
    ask = {"ssh": reach, "folder": tmp_path, "program": "it's here.py", "python": "true"}
    hosts = hosts_of(f"{socket.gethostname()}:2,far:2")

    assert unusable(hosts, **ask) == []
    assert unusable(hosts, **ask | {"folder": tmp_path / "none"}) == [
        f"far has no folder {tmp_path / 'none'}; use one that all hosts share"
    ]
    assert unusable(hosts, **ask | {"program": "gone.py"}) == ["far has no file gone.py in that folder"]
    assert unusable(hosts, **ask | {"python": "false"}) == ["far cannot import samestep with false"]
    assert unusable(hosts_of("localhost:2"), **ask | {"folder": tmp_path / "none"}) == []


def test_an_unreachable_host_is_named_with_the_error_of_ssh(tmp_path):
    reach = ssh(tmp_path, "echo 'Permission denied (publickey).' >&2; exit 255")

    (reason,) = unusable(hosts_of("far:2"), ssh=reach, folder=tmp_path, program=None, python="true")

    assert reason == f"far cannot be reached by `{reach} far` (Permission denied (publickey).)"


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


@pytest.mark.parametrize("flavor", ["openmpi", "mpich"])
def test_a_job_of_mpi_is_valid_bash(flavor):
    made = MpiJob(
        command=parse_command(["train", "digits", "a; b"]),
        name="a\nname",
        hosts=hosts_of("a:2,b:2"),
        workers=4,
        flavor=flavor,
        site=MpiSite(interface="eth0\n)", ssh="my 'odd\nssh'", modules=("m",)),
        folder=Path("/it's\nhere"),
        python="/usr/bin/python3",
        as_root=True,
    )

    subprocess.run(["bash", "-n"], input=mpi_script(made), text=True, check=True)


def test_a_job_without_a_scheduler_has_its_own_session(tmp_path):
    path = tmp_path / "job.sh"
    path.write_text("ps -o sid= -p $$; exit 3\n")
    started = DetachedJob(path, tmp_path / "job.log")
    changes, shown = [], []

    assert follow(started, log=changes.append, show=shown.append) == 3
    assert changes[-1].startswith(f"{started.name} has failed, exit code 3")
    assert b"".join(shown).split() == [started.number.encode()]
    assert started.stop == f"kill -TERM -- -{started.number}"


def test_ctrl_c_ends_the_command_that_follows_a_job_and_not_the_job(tmp_path, monkeypatch):
    """The job has a session of its own, as it has when the terminal is closed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\n[ $1 = --version ] && echo HYDRA && exit; echo begun; exec sleep 60\n")
    mpirun.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    command = start("submit", "mpi", "--hosts", "localhost:2", "train.py", PATH=path)
    assert lines(command, 1) == ["begun"]

    os.kill(command.pid, signal.SIGINT)
    ended = finish(command)

    assert ended.code == 130
    job = int(ended.err.split()[2])
    assert ended.err.splitlines()[-1].endswith(f"kill -TERM -- -{job}")
    subprocess.run(["bash", "-c", f"kill -TERM -- -{job}"], check=True)  # it was there to be ended
    assert await_end_of([job]) == []
