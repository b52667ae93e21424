"""Ranks as real processes, with nothing but variables: they join, or all of them learn why not."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import samestep

SOURCE = Path(__file__).parents[2] / "src"
LAUNCHERS_OWN = ("SLURM_", "OMPI_", "PMI", "MPI_", "TORCHELASTIC_")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def start(tmp_path):
    """Start one process for each rank with a script; they end with the test."""
    processes = []

    def run(script, size, **variables):
        path = tmp_path / "script.py"
        path.write_text(f"import os, signal\nimport torch\nimport samestep\n{script}")
        port = free_port()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS_OWN)}
        for rank in range(size):
            environment = {
                **inherited,
                "PYTHONPATH": str(SOURCE),
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                **variables,
            }
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(path)],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        return [(process.communicate(timeout=90), process.returncode) for process in processes]

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def test_ranks_join_twice_and_leave(start):
    script = """
for _ in range(2):
    with samestep.join(device="cpu") as world:
        print(world.place.describe(), world.sum(world.place.rank + 1), flush=True)
"""
    outcomes = start(script, 2)

    for rank, ((out, err), code) in enumerate(outcomes):
        assert code == 0, err
        assert out.splitlines() == [f"rank {rank} of 2 (local rank {rank} of 2 on node 0 of 1) 3.0"] * 2
    banners = [line for (_, err), _ in outcomes for line in err.splitlines() if line.startswith("samestep:")]
    line = "samestep: 2 workers on one node, environment, cpu, gloo, 1 thread each (OMP_NUM_THREADS=1)"
    assert banners == [line, line]


def test_a_rank_that_cannot_join_tells_the_others(start):
    script = """
backend = "nccl" if os.environ["RANK"] == "1" else None
with samestep.join(device="cpu", backend=backend, timeout_s=60) as world:
    pass
"""
    ((_, first), first_code), ((_, second), second_code) = start(script, 2)

    assert first_code
    assert second_code
    assert "rank 1" in first
    assert "backend=nccl cannot carry cpu tensors" in first
    assert "backend=nccl cannot carry cpu tensors" in second


def test_ranks_leave_when_another_is_killed(start):
    script = """
with samestep.join(device="cpu", timeout_s=60) as world:
    world.barrier()
    if world.place.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    world.barrier()
"""
    ((_, survivor), code), (_, killed) = start(script, 2)

    assert killed == -signal.SIGKILL
    assert code == 1
    assert "barrier" in survivor


def test_an_unresolvable_master_is_refused_before_anything_starts(start):
    outcomes = start("with samestep.join(device='cpu'): pass", 2, MASTER_ADDR="no-such-host.invalid")
    for (_, err), code in outcomes:
        assert code == 1
        assert "no-such-host.invalid, the host of rank 0, cannot be resolved" in err


@pytest.mark.parametrize(("banner", "told"), [(None, ["cpu, gloo"]), ("0", [])])
def test_under_samestep_run_the_ranks_say_device_and_back_end_once(tmp_path, banner, told):
    path = tmp_path / "script.py"
    path.write_text(
        "import os, samestep\n"
        "with samestep.join(device='cpu') as world:\n"
        "    world.print(os.environ.get('SAMESTEP_BANNER'))\n"
    )
    ended = samestep(
        "run", "-n", 2, "--threads", 1, path, **({} if banner is None else {"SAMESTEP_BANNER": banner})
    )

    assert ended.code == 0, ended.err
    assert ended.out == f"{banner}\n"
    launcher, *ranks = ended.err.splitlines()
    assert launcher == "samestep: 2 workers on this node, 1 thread each"
    assert "joins its peers itself" in ranks[0]
    assert ranks[1:] == [f"samestep: {line}" for line in told]
