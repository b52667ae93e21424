"""Ranks have the same threads and cores under every real launcher."""

import os
import sys

import pytest

from support.launches import RUN
from support.mpi import mpirun
from support.tiers import long_param

FORWARD = ("PYTHONPATH",) if "PYTHONPATH" in os.environ else ()
PROCESSORS = ("--no-python", "grep", "Cpus_allowed_list", "/proc/self/status")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "native.py"
    path.write_text("import torch.distributed as dist\ndist.init_process_group()")
    return path


def without_binding(words):
    """Return an mpirun command without the binding flags of the fixture."""
    at = words.index("--bind-to")
    return [*words[:at], *words[at + 2 :]]


def threads(done):
    assert done.code == 0, done.err
    return {line for line in done.out.splitlines() if line.startswith("threads: ")}


def test_every_launcher_gives_workers_the_same_number_of_threads(slurm, nodes, script):
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
    assert threads(nodes.run("node0", *without_binding(openmpi), *plan, script)) == plain
    assert threads(slurm.run("srun", "--ntasks=2", *plan, script)) == plain


def test_an_unbound_task_uses_the_cpus_of_slurms_grant(slurm, script):
    done = slurm.run("srun", "--ntasks=1", "--cpus-per-task=1", *RUN, "--dry-run", script)

    (line,) = threads(done)
    assert line.startswith("threads: 1 each (1 usable cores for one rank, limited by Slurm's grant of 1 CPUs")


def test_ranks_under_open_mpi_are_bound_only_if_requested(nodes):
    launch = without_binding(mpirun("openmpi", nodes, ["node0"], per_host=2, forward=FORWARD))
    all_of_them = nodes.run("node0", *PROCESSORS[1:]).out

    assert nodes.run("node0", *launch, *PROCESSORS[1:]).out != 2 * all_of_them
    assert nodes.run("node0", *launch, *RUN, *PROCESSORS).out == 2 * all_of_them
    kept = nodes.run("node0", *launch, "--bind-to", "core", *RUN, *PROCESSORS)
    assert kept.out != 2 * all_of_them


@pytest.mark.parametrize("launch", [("-n", 2), long_param(("srun", "--ntasks=2"))], ids=["here", "srun"])
def test_ranks_are_bound_to_different_cores_if_requested(slurm, launch):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor cannot be shared out")
    words = [*launch, *RUN] if launch[0] == "srun" else [*RUN, *launch]
    done = slurm.run(*words, "--bind", "core", *PROCESSORS)

    assert done.code == 0, done.err
    assert len(set(done.out.splitlines())) == 2
    assert ", each bound to cores of its own" in done.err
