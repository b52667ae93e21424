"""Threads and processors of a rank are the same whoever started it, on the real launchers."""

import os
import sys

import pytest

from support.launches import RUN
from support.mpi import mpirun

FORWARD = ("PYTHONPATH",) if "PYTHONPATH" in os.environ else ()
PROCESSORS = ("--no-python", "grep", "Cpus_allowed_list", "/proc/self/status")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "native.py"
    path.write_text("import torch.distributed as dist\ndist.init_process_group()")
    return path


def bound(words):
    """Return an mpirun without what the fixture says about binding."""
    at = words.index("--bind-to")
    return [*words[:at], *words[at + 2 :]]


def threads(done):
    assert done.code == 0, done.err
    return {line for line in done.out.splitlines() if line.startswith("threads: ")}


def test_threads_are_those_of_the_same_workers_on_this_host(slurm, nodes, script):
    plan = (*RUN, "--dry-run")
    plain = threads(nodes.run("node0", *plan, "-n", 2, script))
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2, "-m", "samestep", "run")
    mpich, openmpi = (
        mpirun(kind, nodes, ["node0"], per_host=2, forward=FORWARD) for kind in ("mpich", "openmpi")
    )

    assert len(plain) == 1
    assert threads(nodes.run("node0", *torchrun, "--dry-run", script)) == plain
    assert threads(nodes.run("node0", *mpich, *plan, script)) == plain
    assert threads(nodes.run("node0", *openmpi, *plan, script)) == plain
    assert threads(nodes.run("node0", *bound(openmpi), *plan, script)) == plain
    assert threads(slurm.run("srun", "--ntasks=2", *plan, script)) == plain


def test_a_task_has_the_processors_it_was_given_where_nothing_holds_it_to_them(slurm, script):
    done = slurm.run("srun", "--ntasks=1", "--cpus-per-task=1", *RUN, "--dry-run", script)

    (line,) = threads(done)
    assert line.startswith("threads: 1 each (1 usable cores for one rank, limited by Slurm's grant of 1 CPUs")


def test_open_mpi_binds_no_rank_that_nobody_asked_it_to(nodes):
    launch = bound(mpirun("openmpi", nodes, ["node0"], per_host=2, forward=FORWARD))
    all_of_them = nodes.run("node0", *PROCESSORS[1:]).out

    assert nodes.run("node0", *launch, *PROCESSORS[1:]).out != 2 * all_of_them
    assert nodes.run("node0", *launch, *RUN, *PROCESSORS).out == 2 * all_of_them
    kept = nodes.run("node0", *launch, "--bind-to", "core", *RUN, *PROCESSORS)
    assert kept.out != 2 * all_of_them


@pytest.mark.parametrize("launch", [("-n", 2), ("srun", "--ntasks=2")], ids=["here", "srun"])
def test_ranks_that_share_processors_have_cores_of_their_own_if_asked_for(slurm, launch):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor cannot be shared out")
    words = [*launch, *RUN] if launch[0] == "srun" else [*RUN, *launch]
    done = slurm.run(*words, "--bind", "core", *PROCESSORS)

    assert done.code == 0, done.err
    assert len(set(done.out.splitlines())) == 2
    assert ", each bound to cores of its own" in done.err
