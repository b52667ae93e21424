"""The job lines of the tutorials as printed there, with other names, addresses and numbers of workers."""

import os
import sys
from pathlib import Path

import pytest

from support.commands import finish
from support.mpi import mpirun
from support.nodes import LOGIN
from support.tutorial_messages import assert_messages_within_and_across_nodes

TUTORIAL = Path(__file__).parents[3] / "examples" / "tutorial"
SCRIPT = TUTORIAL / "message_passing.py"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

# 000: the job by srun, and the one by srun and torchrun; these nodes have no GPUs.
SRUN = f"""
exec 2>&1
export MASTER_PORT=$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))
master_addr=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR=$master_addr
srun python {SCRIPT}
"""
SRUN_TORCHRUN = f"""
exec 2>&1
head_node_ip=$(hostname --ip-address)
OMP_NUM_THREADS=1 srun torchrun --nproc_per_node=2 --nnodes 2 --rdzv_id 1234 \
    --rdzv_backend c10d --rdzv_endpoint $head_node_ip:29500 {SCRIPT}
"""
# 003: once on each of two nodes.
NODE = "--nproc_per_node=2 --nnodes=2 --node_rank={rank} --master_addr=node0 --master_port=1234"


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "flags"),
    [
        (SRUN, ("--ntasks=4", "--ntasks-per-node=2", "--cpus-per-task=1")),
        (SRUN_TORCHRUN, ("--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=2")),
    ],
    ids=["srun", "srun torchrun"],
)
def test_the_jobs_of_the_course_send_messages_between_four_ranks(slurm, script, flags, tmp_path):
    (out,) = slurm.batch(script, *flags, folder=tmp_path, PATH=PATH)

    assert_messages_within_and_across_nodes(out)


@pytest.mark.long
@pytest.mark.parametrize(
    "launch", [("python3", "-W", "ignore", "-m", "torch.distributed.launch"), ("torchrun",)], ids=" ".join
)
def test_the_guides_command_on_each_node_sends_messages_between_four_ranks(nodes, launch):
    started = [
        nodes.start(f"node{rank}", *launch, *NODE.format(rank=rank).split(), SCRIPT, PATH=PATH)
        for rank in range(2)
    ]
    both = [finish(process) for process in started]

    assert [done.code for done in both] == [0, 0], both[0].err + both[1].err
    assert_messages_within_and_across_nodes(both[0].out)


@pytest.mark.long
def test_open_mpi_with_the_flags_of_the_guide_sends_messages_between_four_ranks(nodes):
    words = mpirun("openmpi", nodes, ["node0", "node1"], per_host=2)
    reached = [word for word in words[1 : words.index("--host")] if word not in ("--bind-to", "none")]
    done = nodes.run(
        *("node0", words[0], *reached),
        *("-np", "4", "-H", "node0:2,node1:2"),
        *("-x", "MASTER_ADDR=node0", "-x", "MASTER_PORT=1234", "-x", "PATH"),
        *("-bind-to", "none", "-map-by", "slot", "-mca", "pml", "ob1", "-mca", "btl", "^openib"),
        *("python3", SCRIPT),
        PATH=PATH,
    )

    assert done.code == 0, done.err
    assert_messages_within_and_across_nodes(done.out)


@pytest.mark.long
def test_mpich_sends_messages_between_four_ranks(nodes):
    command = mpirun("mpich", nodes, ["node0", "node1"], per_host=2)
    done = nodes.run(
        *(LOGIN, *command, "python3", SCRIPT), PATH=PATH, MASTER_ADDR="node0", MASTER_PORT="1234"
    )

    assert done.code == 0, done.err
    assert_messages_within_and_across_nodes(done.out)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
def test_hello_world_is_printed_once_by_each_process(nodes, kind):
    done = nodes.run("node0", *mpirun(kind, nodes, ["node0"], per_host=3), "echo", "hello", "world")

    assert done.out.splitlines() == ["hello world"] * 3
