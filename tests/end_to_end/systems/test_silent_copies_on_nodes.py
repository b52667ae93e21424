"""Scripts whose ranks train independently end in their first steps, on two nodes and under every launcher."""

import os
import sys

import pytest

from support import silent_copy_scripts
from support.commands import finish
from support.launches import RUN
from support.mpi import mpirun
from support.nodes import LOGIN
from support.tiers import long_param

FORWARD = ("PYTHONPATH",) if "PYTHONPATH" in os.environ else ()
TWO = ("node0", "node1")
LAST = "step 99"


def static(nodes, slurm, folder):
    flags = ("--nnodes", 2, "--master-addr", "node0", "--nproc-per-node", 2)
    launchers = [
        nodes.start(node, *RUN, *flags, "--node-rank", i, "train.py", folder=folder)
        for i, node in enumerate(TWO)
    ]
    ended = [finish(one) for one in launchers]
    return (
        max(one.code for one in ended),
        "".join(one.out for one in ended),
        "".join(one.err for one in ended),
    )


def srun(nodes, slurm, folder):
    ended = slurm.run("srun", "--nodes=2", "--ntasks-per-node=2", *RUN, "train.py", folder=folder)
    return ended.code, ended.out, ended.err


def sbatch_per_node(nodes, slurm, folder):
    flags = ("--nodes", 2, "--nproc-per-node", 2, "--launch", "node")
    submit = (sys.executable, "-m", "samestep", "submit", "slurm", *flags)
    ended = slurm.run(*submit, "train.py", folder=folder)
    return ended.code, ended.out, ended.err


def openmpi(nodes, slurm, folder):
    launch = mpirun("openmpi", nodes, TWO, per_host=2, forward=FORWARD)
    ended = nodes.run(LOGIN, *launch, *RUN, "train.py", folder=folder)
    return ended.code, ended.out, ended.err


def mpich(nodes, slurm, folder):
    ended = nodes.run(LOGIN, *mpirun("mpich", nodes, TWO, per_host=2), *RUN, "train.py", folder=folder)
    return ended.code, ended.out, ended.err


GROUPS = {
    "no group": silent_copy_scripts.NO_GROUP,
    "groups of one": silent_copy_scripts.GROUPS_OF_ONE,
    "one group per node": silent_copy_scripts.ONE_PER_NODE,
    "halves": silent_copy_scripts.HALVES,
}


@pytest.mark.parametrize(
    ("launch", "group"),
    [
        (static, "halves"),
        *(long_param(static, group) for group in GROUPS if group != "halves"),
        *(long_param(openmpi, group) for group in ("no group", "groups of one")),
        *(long_param(srun, group) for group in ("no group", "one group per node")),
        long_param(sbatch_per_node, "one group per node"),
        long_param(mpich, "halves"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_ranks_that_train_independently_end_in_their_first_steps(nodes, slurm, tmp_path, launch, group):
    (tmp_path / "train.py").write_text(silent_copy_scripts.script(GROUPS[group]))

    code, out, err = launch(nodes, slurm, tmp_path)

    assert code != 0
    assert LAST not in out
    assert "train.py:12" in out + err  # a job of Slurm prints both into one file
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("launch", "group"),
    [
        long_param(srun, silent_copy_scripts.BY_SLURM),
        long_param(sbatch_per_node, silent_copy_scripts.BY_SLURM),
        (static, silent_copy_scripts.BY_SLURM),
        long_param(openmpi, silent_copy_scripts.BY_OPEN_MPI),
        long_param(static, silent_copy_scripts.BY_OPEN_MPI),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_script_that_reads_a_launchers_variables_trains_as_one_group(nodes, slurm, tmp_path, launch, group):
    (tmp_path / "train.py").write_text(silent_copy_scripts.script(group))

    code, out, err = launch(nodes, slurm, tmp_path)

    assert code == 0, err
    assert out.count(LAST) == 1
