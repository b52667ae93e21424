"""What dead jobs leave: judged from recordings, and found for real."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from samestep.doctor import leftovers
from samestep.doctor.leftovers import Process, Segment, orphans

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
    part = leftovers.judge(left, segments, holder, port)
    return [(finding.text, finding.hurts) for finding in part.findings]


def replaced(**changes):
    return Process(**{**{name: getattr(WORKER, name) for name in Process.__slots__}, **changes})


def test_a_worker_whose_launcher_is_gone_is_an_orphan():
    in_container = replaced(pid=5, parent=77, parent_name="tini")
    assert orphans([WORKER, in_container], own={1, 10}) == [WORKER, in_container]


@pytest.mark.parametrize(
    "changes", [{"parent": 99, "parent_name": "torchrun"}, {"variables": ()}, {"pid": 10}], ids=str
)
def test_a_worker_with_a_launcher_and_a_process_of_this_job_are_not(changes):
    assert orphans([replaced(**changes)], own={1, 10}) == []


def test_an_agent_that_was_started_in_a_slurm_step_is_no_worker():
    agent = replaced(command="ssh-agent -s", variables=("SLURM_PROCID=0",))
    assert orphans([agent], own=set()) == []
    worker = replaced(command="/env/bin/python3 train.py", variables=("SLURM_PROCID=0",))
    assert orphans([worker], own=set()) == [worker]


def test_an_orphan_hurts_and_is_told_with_its_port_and_age():
    ((text, hurts),) = judged([WORKER])
    assert hurts
    assert "4242 (python train.py, RANK=3, since 2 h 3 min, listens at 29500)" in text
    assert "`kill 4242`" in text


def test_many_orphans_are_counted():
    ((text, _),) = judged([replaced(pid=1000 + i) for i in range(8)])
    assert "8 worker(s)" in text
    assert "and 3 more" in text
    assert "1007" in text


def test_a_port_that_somebody_holds_hurts():
    ((text, hurts),) = judged(holder=WORKER, port=29500)
    assert hurts
    assert "Port 29500, where the ranks are to meet, is held by process 4242 (python train.py)" in text


def test_memory_of_the_dead_is_noted():
    ((text, hurts),) = judged(segments=[Segment(name="torch_9_1_0", bytes=2**20)])
    assert not hurts
    assert "1 MiB" in text
    assert "torch_9_1_0" in text


def test_memory_of_the_dead_is_found_by_its_name(tmp_path):
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    for name in (f"torch_{process.pid}_1_0", f"torch_{os.getpid()}_1_0", "other"):
        (tmp_path / name).write_bytes(b"12345")
    assert leftovers.segments_of_the_dead(tmp_path) == [Segment(name=f"torch_{process.pid}_1_0", bytes=5)]


def test_a_real_worker_and_its_port_are_seen():
    code = (
        "import socket, time; server = socket.create_server(('127.0.0.1', 0)); "
        "print(server.getsockname()[1], flush=True); time.sleep(60)"
    )
    worker = subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True, env={"RANK": "3"}
    )
    try:
        port = int(worker.stdout.readline())
        (seen,) = [one for one in leftovers.processes_here() if one.pid == worker.pid]
        assert (seen.parent, seen.ports, seen.variables) == (os.getpid(), (port,), ("RANK=3",))
        assert orphans([seen], own=leftovers.around_here()) == []
        assert leftovers.listener_at(port, own={os.getpid()}).pid == worker.pid
        assert leftovers.listener_at(port, own=leftovers.around_here()) is None
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        worker.stdout.close()


def test_a_port_of_ones_own_is_nobody_elses():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert leftovers.listener_at(server.getsockname()[1], own={os.getpid()}) is None
