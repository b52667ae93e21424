"""Another user on any host neither connects to a run on several nodes nor delays it."""

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from samestep.base.errors import UsageError
from support.attacks import (
    NOBODY,
    attacked_on,
    attacking,
    await_ports,
    finish_uncontended,
    ports,
    recorded,
)
from support.commands import finish
from support.launches import RUN
from support.mpi import mpirun
from support.nodes import LOGIN
from support.systems import program
from support.tiers import long_param, mostly_long

DELAY_S = 5.0
FORWARD = ("PYTHONPATH",) if "PYTHONPATH" in os.environ else ()
TWO = ("node0", "node1")

# Rank 1 comes later: in the script, or before its launcher's task begins.
SCRIPT = """
import os, sys, time
import torch.distributed as dist
attacked = sys.argv[1]
while os.environ["RANK"] == "1" and not os.path.exists(attacked):
    time.sleep(0.01)
dist.init_process_group("gloo")
values = [None, None]
dist.all_gather_object(values, os.environ["RANK"])
open(f"{attacked}-{dist.get_rank()}", "w").write("".join(values))
"""
LATE = """
case "${SLURM_PROCID:-$OMPI_COMM_WORLD_RANK}" in 1) while [ ! -e "$0" ]; do sleep 0.05; done ;; esac
exec "$@"
"""

# Rank 1 comes later: without authentication an attacker has the time to take its place.
GROUPS = """
import os, time
import torch.distributed as dist
time.sleep(2 * int(os.environ["RANK"]))
dist.init_process_group("gloo")
values = [None, None]
dist.all_gather_object(values, os.environ["RANK"])
print("".join(values))
"""
SERIAL = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
print(f"{sum(p.sum() for p in model.parameters()):.4f}")
"""
COMMANDS = {
    "run": ("run", "-n", 2, "--mode", "native", "train.py"),
    "serial": ("run", "-n", 2, "serial.py"),
    "train": ("train", "digits", "-n", 2, "--epochs", 1, "--subset", 256, "--out", "out"),
    "doctor": ("doctor", "-n", 2, "--no-devices", "--json", "--run-folder", "."),
    "bench": ("bench", "all-reduce", "-n", 2, "--sizes", "4,1K", "--seconds", 0.1),
}


def static(nodes, slurm, program):
    flags = ("--nnodes", 2, "--master-addr", "node0", "--nproc-per-node", 1)
    return [nodes.start(node, *RUN, *flags, "--node-rank", i, *program) for i, node in enumerate(TWO)]


def c10d(nodes, slurm, program):
    flags = ("--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", "node0:29777", "--nproc-per-node", 1)
    return [nodes.start(node, *RUN, *flags, *program) for node in TWO]


def slurm_script(nodes, slurm, program):
    return [slurm.start("srun", "--nodes=2", *RUN, *program)]


def slurm_rendezvous(nodes, slurm, program):
    return [slurm.start("srun", "--nodes=2", "sh", "-c", LATE, program[-1], *RUN, *program)]


def open_mpi(nodes, slurm, program):
    launch = mpirun("openmpi", nodes, TWO, per_host=1, forward=FORWARD)
    return [nodes.start(LOGIN, *launch, *RUN, *program)]


def mpich(nodes, slurm, program):
    launch = mpirun("mpich", nodes, TWO, per_host=1)
    return [nodes.start(LOGIN, *launch, *RUN, *program)]


@pytest.mark.parametrize(
    ("launch", "listeners"),
    # Launchers of several nodes have a store of their own beside that of rank 0.
    [
        (static, 2),
        long_param(c10d, 2),
        *(long_param(launch, 1) for launch in (slurm_script, slurm_rendezvous, open_mpi, mpich)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_users_of_either_host_neither_connect_to_a_run_nor_delay_it(
    nodes, slurm, tmp_path, launch, listeners
):
    program("netns", "setpriv")
    (tmp_path / "train.py").write_text(SCRIPT)

    recording = tmp_path / "recorded"

    def run(name, attack):
        """Return what the attack reports, and how long the run takes from then on."""
        before = ports(nodes)
        attacked = tmp_path / name
        running = launch(nodes, slurm, (tmp_path / "train.py", attacked))
        found = await_ports(nodes, before, listeners, running, rendezvous=launch is slurm_rendezvous)
        with attack(found) as report:
            attacked.touch()
            ended = [finish(process) for process in running]
            end = time.time()
        assert [done.code for done in ended] == [0] * len(ended), [done.err for done in ended]
        ranks = [Path(f"{attacked}-{rank}") for rank in range(2)]
        assert [file.read_text() for file in ranks] == ["01", "01"]
        if launch not in (static, c10d):  # srun and mpirun end at once or some seconds after the ranks
            end = max(file.stat().st_mtime for file in ranks)
        return report, end - attacked.stat().st_mtime

    def attack(found):
        return attacking(nodes, *(f"node0:{port}" for port in found), recording=recording, until=found)

    with recorded(nodes, recording, between=TWO):
        _, usual = run("alone", lambda _: nullcontext())
        # The sockets of MPI's own daemons ask nobody: who attacks all of them stops mpirun, without samestep.
        with nullcontext() if launch in (open_mpi, mpich) else attacked_on(nodes, "node0") as taken:
            report, took = run("attacked", attack)

    assert taken or launch in (open_mpi, mpich)
    assert max(report["answers"].values()) <= 64, report
    assert report["uid"] == NOBODY
    assert took < usual + DELAY_S


@pytest.mark.parametrize("command", mostly_long(COMMANDS, ("run",)))
def test_a_user_of_the_same_host_neither_connects_to_a_command_nor_delays_it(nodes, tmp_path, command):
    program("netns", "setpriv")

    def run(name):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(GROUPS)
        (folder / "serial.py").write_text(SERIAL)
        command_line = (sys.executable, "-m", "samestep", *COMMANDS[command])
        return finish_uncontended(nodes.start("node0", *command_line, folder=folder))

    undisturbed, usual = run("alone")
    is_serial = command == "serial"
    for attempt in range(1 if is_serial else 5):
        with attacked_on(nodes, "node0") as taken:
            ended, took = run(f"attacked-{attempt}")
        # Where only Gloo listens, for some milliseconds, the attacker can be too late.
        if taken:
            break
    assert bool(taken) != is_serial  # the workers of a serial script share memory, and listen nowhere

    assert ended.code == undisturbed.code, ended.err
    assert "Traceback" not in ended.err
    if command in ("run", "serial"):
        # The lines of two ranks may interleave.
        assert (sorted(ended.out), ended.code) == (sorted(undisturbed.out), 0)
    assert took < usual + DELAY_S


def test_nodes_with_different_secrets_are_refused_with_the_flag_to_use(nodes, tmp_path):
    files = [tmp_path / f"secret-{i}" for i in range(2)]
    for file in files:
        file.touch(0o600)
        file.write_bytes(os.urandom(32))
    flags = ("--nnodes", 2, "--master-addr", "node0", "--nproc-per-node", 1)
    program = ("--no-python", "true")
    one, other = (
        nodes.start(node, *RUN, *flags, "--node-rank", i, "--secret-file", files[i], *program)
        for i, node in enumerate(TWO)
    )
    try:
        done = finish(other)
    finally:
        one.terminate()
        finish(one)

    assert done.code == UsageError.exit_code
    assert "--secret-file" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "command",
    [
        ("train", "digits", "--epochs", 1, "--subset", 128, "--out", "out"),
        long_param(("doctor", "--no-devices", "--wait", 8)),
    ],
    ids=lambda command: command[0],
)
def test_commands_of_two_tasks_read_the_secret_of_the_flag(nodes, tmp_path, command):
    file, another = (tmp_path / name for name in ("secret", "another"))
    for one in (file, another):
        one.touch(0o600)
        one.write_bytes(os.urandom(32))

    def run(*files):
        master = {"MASTER_ADDR": "node0", "MASTER_PORT": "29511", "WORLD_SIZE": "2"}
        tasks = [
            nodes.start(
                node,
                *(sys.executable, "-m", "samestep", *command, "--secret-file", files[i]),
                folder=tmp_path,
                RANK=str(i),
                HOME=str(tmp_path / node),  # none in common
                OMP_NUM_THREADS="1",
                **master,
            )
            for i, node in enumerate(TWO)
        ]
        try:
            return finish(tasks[1])
        finally:
            tasks[0].terminate()
            finish(tasks[0])

    different, equal = run(file, another), run(file, file)

    assert different.code != 0
    assert "--secret-file" in different.err
    assert "--secret-file" not in equal.err
