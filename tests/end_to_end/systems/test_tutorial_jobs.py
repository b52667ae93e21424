"""The tutorial's job scripts under a real Slurm and a real Open MPI, on two nodes."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from support.mpi import mpirun
from support.nodes import LOGIN
from support.tiers import long_param
from support.tutorial_messages import assert_messages_within_and_across_nodes

TUTORIAL = Path(__file__).parents[3] / "examples" / "tutorial"
SPAWNS = f"""
export MASTER_ADDR=node0 MASTER_PORT=29517
srun --ntasks-per-node=1 {sys.executable} -c '
import os, sys
sys.argv[1:1] = ["-n", "2", "-g", "2", "-nr", os.environ["SLURM_NODEID"]]
sys.path.insert(0, "{TUTORIAL}")
import spawn
spawn.main()' --synthetic --subset 48 --batch-size 24 --norm group --epochs 1
"""


@pytest.mark.long
@pytest.mark.parametrize(("job", "tasks"), [("srun.sh", 2), ("srun_torchrun.sh", 1)])
def test_ranks_that_a_job_script_starts_on_two_nodes_send_messages(slurm, job, tasks, tmp_path):
    path = TUTORIAL / "jobs" / job
    directives = [line for line in path.read_text().splitlines() if line.startswith("#SBATCH")]
    (out,) = slurm.batch(
        "\n".join([*directives, f"exec bash {path} 2>&1"]),
        *("--nodes=2", f"--ntasks-per-node={tasks}", "--cpus-per-task=2", "--gpus-per-node=0"),
        folder=tmp_path,
        PYTHON=sys.executable,
        SCRIPT=str(TUTORIAL / "message_passing.py"),
        WORKERS="2",
    )

    assert_messages_within_and_across_nodes(out)


@pytest.mark.parametrize("variable", [long_param("HOSTS"), "HOSTFILE"])
def test_ranks_that_the_mpirun_script_starts_on_two_nodes_send_messages(nodes, variable, tmp_path):
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("# hosts\nnode0 slots=2\nnode1 slots=2\n")
    hosts = {"HOSTS": "node0:2,node1:2", "HOSTFILE": str(hostfile)}
    words = mpirun("openmpi", nodes, ["node0", "node1"], per_host=2)
    flags = words[1 : words.index("--host")]  # how the nodes of this test are reached, in the place of ssh
    done = nodes.run(
        *(LOGIN, "bash", TUTORIAL / "jobs" / "mpirun.sh"),
        PYTHON=sys.executable,
        SCRIPT=str(TUTORIAL / "message_passing.py"),
        MPIRUN="mpirun.openmpi",
        MPI_FLAGS=shlex.join(flag for flag in flags if flag not in ("--bind-to", "none")),
        **{variable: hosts[variable]},
    )

    assert done.code == 0, done.err
    assert_messages_within_and_across_nodes(done.out)


@pytest.mark.long
def test_spawned_workers_of_two_nodes_are_one_run(slurm, tmp_path):
    (out,) = slurm.batch(f"exec 2>&1\n{SPAWNS}", "--nodes=2", folder=tmp_path, OMP_NUM_THREADS="1")

    assert re.findall(r"right \d+/(\d+)", out) == ["48"], out
