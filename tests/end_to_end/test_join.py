"""Real processes with a launcher's variables join, or all report why they cannot."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import environment, finish, free_port
from support.forked_commands import samestep, start_script
from support.launches import DIES_ONCE

SOURCE = Path(__file__).parents[2] / "src"


def start_interpreter(path, **changes):
    return subprocess.Popen(
        [sys.executable, str(path)],
        env=environment(**changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def start(tmp_path):
    """Start one process for each of two ranks with a script; they end with the test."""
    processes = []

    def run(script, start_one=start_script, **changes):
        path = tmp_path / "script.py"
        path.write_text(f"import os, signal\nimport torch\nimport samestep\n{script}")
        variables = {
            "PYTHONPATH": str(SOURCE),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "OMP_NUM_THREADS": "1",
        }
        processes.extend(start_one(path, **variables | changes, RANK=str(rank)) for rank in range(2))
        return [finish(process) for process in processes]

    yield run
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_workers_are_started_again_and_again_without_a_trace(tmp_path):
    """Also where ends of children are not noted: their exit codes were lost. Garbage was kept for ever."""
    path = tmp_path / "spawns.py"
    path.write_text("""
import gc, signal, weakref
import samestep

class Model:
    def __init__(self):
        self.itself = self

def work(world):
    return world.place.size + 2

if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in range(2):
        garbage = weakref.ref(Model())
        print(samestep.spawn(work, 1), signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN)
        gc.collect()
        print(garbage() is None)
""")
    ended = finish(start_interpreter(path, PYTHONPATH=str(SOURCE)))  # in which nothing is frozen
    assert ended.code == 0, ended.err
    assert ended.out == "[3] True\nTrue\n" * 2


def test_ranks_join_twice_and_leave(start):
    script = """
import weakref
for _ in range(2):
    with samestep.join(device="cpu") as world:
        group = weakref.ref(torch.distributed.group.WORLD)
        import torch.distributed.nn.functional  # as the first step of an optimizer does
        print(world.place.describe(), world.sum(world.place.rank + 1), flush=True)
    assert group() is None  # else its threads may abort the process at its end
"""
    ranks = start(script, start_interpreter)

    for rank, ended in enumerate(ranks):
        assert ended.code == 0, ended.err
        said = f"rank {rank} of 2 (local rank {rank} of 2 on node 0 of 1) 3.0"
        assert ended.out.splitlines() == [said] * 2
    banners = [line for one in ranks for line in one.err.splitlines() if line.startswith("samestep:")]
    line = "samestep: 2 workers on one node, environment, cpu, gloo, 1 thread each (OMP_NUM_THREADS=1)"
    assert banners == [line, line]


def test_the_reason_why_one_rank_cannot_join_is_reported_by_all(start):
    script = """
backend = "nccl" if os.environ["RANK"] == "1" else None
with samestep.join(device="cpu", backend=backend, timeout_s=60) as world:
    pass
"""
    first, second = start(script)

    assert first.code
    assert second.code
    assert "rank 1" in first.err
    assert "backend=nccl cannot carry cpu tensors" in first.err
    assert "backend=nccl cannot carry cpu tensors" in second.err


def test_a_rank_ends_when_another_is_killed(start):
    script = """
with samestep.join(device="cpu", timeout_s=60) as world:
    world.barrier()
    if world.place.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    world.barrier()
"""
    survivor, killed = start(script)

    assert killed.code == -signal.SIGKILL
    assert survivor.code == 1
    assert "barrier" in survivor.err


def test_ranks_under_torchrun_join_again_after_one_was_killed(tmp_path):
    """Torchrun's agent keeps the store of the earlier ranks, whose addresses are outdated."""
    path = tmp_path / "script.py"
    path.write_text(DIES_ONCE)
    flags = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--max-restarts=1", "--nproc-per-node=2")
    command = (sys.executable, "-m", "torch.distributed.run", *flags, path, tmp_path / "died")
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "1.0 after a restart\n"


def test_an_unresolvable_master_is_refused_before_anything_starts(start):
    for ended in start("with samestep.join(device='cpu'): pass", MASTER_ADDR="no-such-host.invalid"):
        assert ended.code == 1
        assert "no-such-host.invalid, the host of rank 0, cannot be resolved" in ended.err


@pytest.mark.parametrize(("banner", "printed"), [(None, ["cpu, gloo"]), ("0", [])])
def test_under_samestep_run_device_and_back_end_are_printed_once(tmp_path, banner, printed):
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
    assert ranks[1:] == [f"samestep: {line}" for line in printed]
