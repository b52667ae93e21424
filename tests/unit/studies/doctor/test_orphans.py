"""Processes, ports and memory that ended jobs have left are found and reported."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from samestep.base.machine.torch_segments import numbers_of_the_living
from samestep.studies.doctor import orphans as orphan_checks
from samestep.studies.doctor.orphans import Process, Segment, orphans

WORKER = Process(
    pid=4242,
    parent=1,
    parent_name="anything",
    command="python train.py",
    age_s=7384.0,
    ports=(29500,),
    variables=("RANK=3",),
)


def judged(left=(), segments=(), holder=None, port=None):
    part = orphan_checks.judge(left, segments, holder, port)
    return [(finding.text, finding.hurts) for finding in part.findings]


def replaced(**changes):
    return Process(**{**{name: getattr(WORKER, name) for name in Process.__slots__}, **changes})


def written_proc(folder, *, living=None, pid="pid:[4026531836]"):
    """Write a folder like /proc; `living` has each process and its ids in all namespaces."""
    (folder / "self" / "ns").mkdir(parents=True)
    (folder / "self" / "ns" / "pid").symlink_to(pid)
    for number, numbers in (living or {"1": "1", "8": "8"}).items():
        (folder / number).mkdir()
        (folder / number / "status").write_text(f"Name:\tpython\nNSpid:\t{numbers}\nThreads:\t1\n")
    return folder


def test_a_worker_of_an_ended_launcher_is_an_orphan():
    in_container = replaced(pid=5, parent=77, parent_name="tini")
    assert orphans([WORKER, in_container], own={1, 10}) == [WORKER, in_container]


@pytest.mark.parametrize(
    "changes", [{"parent": 99, "parent_name": "torchrun"}, {"variables": ()}, {"pid": 10}], ids=str
)
def test_workers_with_a_launcher_and_processes_of_this_job_are_no_orphans(changes):
    assert orphans([replaced(**changes)], own={1, 10}) == []


@pytest.mark.parametrize(
    "launcher",
    [
        "mpirun.openmpi --oversubscribe -np 2 samestep doctor",
        "/usr/bin/mpiexec -n 2 samestep doctor",
        "/env/bin/python3 /env/bin/torchrun --no-python samestep doctor",
        "python -m torch.distributed.run train.py",
        "/env/bin/python -u -m samestep run -n 2 train.py",
    ],
)
def test_a_worker_of_a_launcher_that_is_process_1_is_no_orphan(launcher):
    live = replaced(parent=1, parent_name=launcher.split()[0], parent_command=launcher)
    assert orphans([live], own=set()) == []


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("bash", "bash -c mpirun -np 2 train; sleep 9"),
        ("tini", "tini -- mpirun"),
        ("sleep", "sleep infinity"),
    ],
)
def test_a_child_of_process_1_is_an_orphan_unless_process_1_is_a_launcher(name, command):
    left = replaced(parent=1, parent_name=name, parent_command=command)
    assert orphans([left], own=set()) == [left]


def test_an_agent_that_was_started_in_a_slurm_step_is_no_worker():
    agent = replaced(command="ssh-agent -s", variables=("SLURM_PROCID=0",))
    assert orphans([agent], own=set()) == []
    worker = replaced(command="/env/bin/python3 train.py", variables=("SLURM_PROCID=0",))
    assert orphans([worker], own=set()) == [worker]


def test_an_orphan_is_a_problem_with_its_port_and_age():
    ((text, hurts),) = judged([WORKER])
    assert hurts
    assert "4242 (python train.py, RANK=3, since 2 h 3 min, listens at 29500)" in text
    assert "`kill 4242`" in text


def test_many_orphans_are_counted():
    ((text, _),) = judged([replaced(pid=1000 + i) for i in range(8)])
    assert "8 worker(s)" in text
    assert "and 3 more" in text
    assert "1007" in text


def test_a_port_in_use_by_another_process_is_a_problem():
    ((text, hurts),) = judged(holder=WORKER, port=29500)
    assert hurts
    assert all(value in text for value in ("29500", "4242 (python train.py)", "MASTER_PORT"))


def test_orphaned_segments_are_a_note():
    ((text, hurts),) = judged(segments=[Segment(name="torch_9_1_0", bytes=2**20)])
    assert not hurts
    assert "1 MiB" in text
    assert "torch_9_1_0" in text


def test_orphaned_segments_are_found_by_their_names(tmp_path):
    for name in ("torch_77_1_0", "torch_12_1_0", "torch_8_1_0", "other"):
        (tmp_path / name).write_bytes(b"12345")
    proc = written_proc(tmp_path / "proc", living={"1": "1", "8": "8", "4711": "4711\t12"})
    assert orphan_checks.orphaned_segments(tmp_path, proc) == [Segment(name="torch_77_1_0", bytes=5)]


@pytest.mark.parametrize(
    "changes", [{"pid": "pid:[4026532201]"}, {"living": {"8": "8"}}], ids=["container", "hidepid"]
)
def test_no_segment_is_orphaned_if_processes_are_hidden(tmp_path, changes):
    (tmp_path / "torch_77_1_0").write_bytes(b"12345")
    assert orphan_checks.orphaned_segments(tmp_path, written_proc(tmp_path / "proc", **changes)) == []


def test_this_process_is_among_the_running_ones():
    living = numbers_of_the_living()
    assert living is None or str(os.getpid()) in living


def test_a_running_worker_and_its_port_are_found():
    code = (
        "import socket, time; server = socket.create_server(('127.0.0.1', 0)); "
        "print(server.getsockname()[1], flush=True); time.sleep(60)"
    )
    worker = subprocess.Popen(
        [sys.executable, "-S", "-c", code, "--api-key", "sk-12345678"],
        stdout=subprocess.PIPE,
        text=True,
        env={"RANK": "3"},
    )
    try:
        port = int(worker.stdout.readline())
        (seen,) = [one for one in orphan_checks.processes_here() if one.pid == worker.pid]
        assert (seen.parent, seen.ports, seen.variables) == (os.getpid(), (port,), ("RANK=3",))
        assert seen.command.endswith("--api-key ***")
        assert orphans([seen], own=orphan_checks.own_processes()) == []
        assert orphan_checks.listener_at(port, own={os.getpid()}).pid == worker.pid
        assert orphan_checks.listener_at(port, own=orphan_checks.own_processes()) is None
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        worker.stdout.close()


def test_a_port_of_this_process_is_not_in_use_by_another():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert orphan_checks.listener_at(server.getsockname()[1], own={os.getpid()}) is None
